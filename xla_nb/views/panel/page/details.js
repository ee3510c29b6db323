// The details of the chosen rank.

import { held } from "./values.js";
import { duration, joined, OVER } from "./words.js";
import { div, fill, glyph, h, link, mark, put, show, span } from "./nodes.js";
import { meter, stretch, tint } from "./gauges.js";
import { block } from "./ansi.js";
import { placed } from "./places.js";
import { aboutStacks } from "./stacks.js";

/** Everything known of one rank, below the rows. */
export class Detail {
	constructor(view) {
		this.view = view;
		for (const name of ["phase", "since", "device", "place", "what", "from"]) this[name] = span(name);
		this.number = h("h4.number");
		this.last = div("last");
		this.bars = [meter(), meter(), meter()];
		this.used = h("i");
		this.gauge = h("span.gauge", { "aria-hidden": true }, this.used);
		this.facts = h("dl.facts");
		this.values = new Map();
		this.ask = link("Stack", () => view.store.askStacks(this.rank));
		this.close = link("Close", () => view.focus(undefined));
		this.links = span("links", this.ask, this.close);
		this.stack = div("stack");
		this.node = h("div.detail", { role: "group", label: "The chosen rank" },
			div("card-head", this.number, span("state", glyph(), this.phase), this.since, this.place, this.what, span("space"), this.device, this.from, this.links),
			div("bars", ...this.bars.map((bar) => bar.node)),
			this.facts,
			this.last,
			this.stack,
		);
	}

	set(card, store) {
		this.rank = card.rank;
		show(this.close, card.rank === this.view.rank); // of many, one is shown unasked
		mark(this.node, "data-rank", card.rank);
		mark(this.node, "data-phase", card.phase);
		put(this.number, `${store.about.unit} ${card.rank}`);
		tint(this.number, card.rank);
		put(this.phase, card.phase);
		put(this.device, card.device);
		fill(this.place, card.place, () => (card.place ? [placed(card.place, this.view)] : []));
		put(this.what, card.detail);
		put(this.last, card.line);
		put(this.from, card.from);
		this.bars.forEach((bar, i) => bar.set(card.bars[i]));
		this.list(card);
		this.where(store, card.rank);
		put(this.since, card.since === null || OVER.has(card.phase) ? "" : duration(store.lasting(card.since)));
	}

	/** Where the rank is, if it was asked for that. */
	where({ stacks, over }, rank) {
		this.ask.disabled = over;
		show(this.stack, stacks.of === rank);
		if (stacks.of !== rank) return;
		const own = stacks.groups.find(({ ranks }) => ranks.includes(rank));
		const words = aboutStacks({ ...stacks, groups: own ? [own] : [] });
		fill(this.stack, words + JSON.stringify(own), () => [words, own ? block(own.stack || joined(own.place, own.note)) : ""]);
	}

	list({ facts, used }) {
		const value = (id) => held(this.values, id, () => h("dd"));
		const row = ({ id, label }) => h("div", { "data-fact": id }, h("dt", {}, label), value(id), id === "device" ? this.gauge : "");
		fill(this.facts, String(facts.map(({ id }) => id)), () => facts.map(row));
		for (const fact of facts) put(value(fact.id), fact.value);
		show(this.gauge, used !== null);
		stretch(this.used, Math.min(1, used ?? 0));
		this.gauge.classList.toggle("xn-full", used > 0.9);
	}
}
