// The cells that live ranks have run, newest first.

import { count, spans } from "./words.js";
import { div, fill, glyph, h, section, show, span, table } from "./nodes.js";
import { folding } from "./folding.js";
import { placed } from "./places.js";

export class Cells {
	every = 100;

	constructor(view) {
		this.view = view;
		this.body = div("scroll");
		const head = div("bar-head");
		this.node = folding(section("ran", "Cells", head, this.body), "cells", "Cells", head);
	}

	draw() {
		const { ran } = this.view.store;
		show(this.node, ran.size);
		const cells = [...ran.values()].sort((a, b) => b.number - a.number);
		fill(this.body, JSON.stringify(cells), () => [
			table(["", "cell", "ranks", "how it went", "took"], cells.map((cell) => this.row(cell))),
		]);
	}

	row({ number, label, ranks, outcome, told, took }) {
		const how = span("state", glyph(), told);
		const row = [count(number), placed(label, this.view), spans(ranks), how, took];
		return h("tr", { "data-phase": outcome, "data-number": number }, ...row.map((inner) => h("td", {}, inner)));
	}
}
