// Stacks: where each rank is, asked for by a button.

import { div, fill, h, link, mark, put, section, show, span } from "./nodes.js";
import { block } from "./ansi.js";
import { placed } from "./places.js";

export function group({ ranks, who, place, stack, note }, view) {
	const many = ranks.length > 2 ? span("quiet", `(${ranks.length})`) : "";
	const where = [span("own", place ? placed(place, view) : note ? "" : "unknown line"), span("quiet", note)];
	const head = div("trouble-head", h("h5.h", {}, who), many, ...where);
	return h("article.group", { "data-ranks": ranks }, head, stack ? block(stack) : "");
}

/** What is to be said before the stacks. */
export const aboutStacks = ({ state, groups, at }) =>
	({
		asking: "Asking the ranks…",
		fallback: "No answer yet. Last known lines:",
		answered: groups.length ? `As of ${at}.` : "No rank answered.",
	})[state];

export class Stacks {
	every = 0;

	constructor(view) {
		const { store } = view;
		this.view = view;
		this.words = div("quiet");
		this.groups = div("groups");
		const again = link("Ask again", () => store.askStacks());
		const close = link("Close stacks", () => store.setStacks("closed"));
		const head = div("bar-head", h("h4.h", {}, "Where each rank is"), again, close);
		this.node = section("stacks", "Stacks", head, this.words, this.groups);
	}

	draw() {
		const { stacks } = this.view.store;
		const { state, groups, of } = stacks;
		show(this.node, state !== "closed" && of === null); // that of one rank is in its details
		mark(this.node, "data-state", state);
		put(this.words, aboutStacks(stacks));
		fill(this.groups, groups, () => groups.map((one) => group(one, this.view)));
	}
}
