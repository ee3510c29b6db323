// The variables of live ranks, and whether the ranks agree: asked for while the section is open.

import { joined } from "./words.js";
import { button, div, fill, h, put, section, show, span, table } from "./nodes.js";
import { folding } from "./folding.js";

export class Variables {
	every = 100;
	open = false;
	told = false; // to the kernel

	constructor(view) {
		this.view = view;
		this.words = span("quiet");
		this.again = button("Refresh", () => (this.told = false) || view.changed("variables"));
		this.body = div("scroll");
		const head = div("bar-head", this.words, this.again);
		const opened = (open) => {
			this.open = open;
			view.changed("variables");
		};
		this.node = folding(section("variables", "Variables", head, this.body), "variables", "Variables", head, opened);
	}

	draw() {
		const { about, over, variables } = this.view.store;
		show(this.node, about.live && !over);
		if (!about.live || over) return;
		if (this.open !== this.told) {
			this.told = this.open;
			this.view.store.send({ type: this.open ? "variables" : "no variables" });
		}
		const { state, old, after, summary, problem, titles, rows, notes } = variables;
		const known = summary && joined(summary, after && `after ${after}`);
		const words = {
			asking: "Asking the ranks…",
			busy: joined("Asked for when no cell runs", after && known),
			shown: problem || joined(known, old && "cells have run since"),
		};
		put(this.words, words[state] ?? "");
		this.again.disabled = state !== "shown";
		const shown = titles.map((_, i) => i).filter((i) => rows.some(({ cells }) => cells[i]));
		const row = ({ verdict, cells, lines }) => [
			h("tr", { "data-verdict": verdict }, ...shown.map((i) => h("td", {}, cells[i] ?? ""))),
			lines.length ? h("tr.more", {}, h("td", { colspan: shown.length }, ...lines.map((line) => div("other", line)))) : "",
		];
		const drawn = () => [table(shown.map((i) => titles[i]), rows.flatMap(row)), ...notes.map((note) => div("quiet", note))];
		fill(this.body, JSON.stringify([rows, notes]), () => (rows.length ? drawn() : []));
	}
}
