// Stacks: where each rank is, asked for by a button.

import { div, fill, h, link, mark, put, section, show, span, status } from "./nodes.js";
import { block } from "./ansi.js";
import { placed } from "./places.js";

export function group({ ranks, who, place, stack, note }, view) {
	const many = ranks.length > 2 ? span("quiet", `(${ranks.length})`) : "";
	const where = [span("own", place ? placed(place, view) : "unknown line"), span("quiet", note)];
	const head = div("trouble-head", h("strong", {}, who), many, ...where);
	return h("article.group", { "data-ranks": ranks }, head, stack ? block(stack) : "");
}

export class Stacks {
	every = 0;

	constructor(view) {
		const { store } = view;
		this.view = view;
		this.words = status("quiet");
		this.groups = div("groups");
		const again = link("Ask again", () => store.askStacks());
		const close = link("Close stacks", () => store.setStacks("closed"));
		const head = div("bar-head", h("h4.h", {}, "Where each rank is"), again, close);
		this.node = section("stacks", "Stacks", head, this.words, this.groups);
	}

	draw() {
		const { state, groups } = this.view.store.stacks;
		show(this.node, state !== "closed");
		mark(this.node, "data-state", state);
		const words = {
			asking: "Asking the ranks…",
			fallback: "This kernel cannot answer while the cell runs. Last known lines:",
			answered: groups.length ? "" : "No rank answered.",
		};
		put(this.words, words[state]);
		fill(this.groups, groups, () => groups.map((one) => group(one, this.view)));
	}
}
