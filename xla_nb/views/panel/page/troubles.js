// Errors: ranks that failed with the same error, with its line and traceback.

import { div, fill, glyph, h, link, section, show, span } from "./nodes.js";
import { block } from "./ansi.js";
import { placed } from "./places.js";

export class Troubles {
	every = 100;

	constructor(view) {
		this.view = view;
		this.node = section("troubles", "Errors");
	}

	draw() {
		const { troubles } = this.view.store;
		show(this.node, troubles.length);
		fill(this.node, JSON.stringify(troubles), () => troubles.map((trouble) => this.entry(trouble)));
	}

	/** What the headline has told of it is not told again. */
	entry({ ranks, who, phase, open, told, title, place, text, others }) {
		const output = (rank) => link(`Output of rank ${rank}`, () => this.view.focus(rank, true));
		const links = span("links", ...ranks.slice(0, 3).map(output));
		const head = div("trouble-head", glyph(), h("h4.h", {}, who), told ? "" : span("own", placed(place, this.view)), links);
		const lines = [told ? "" : div("trouble-title", title), ...others.map((line) => div("other", line))];
		const traceback = () => h("details", { open: open ? "" : null }, h("summary", {}, "Traceback"), block(text));
		return h("article.trouble", { "data-ranks": ranks, "data-phase": phase }, head, ...lines, text && traceback());
	}
}
