// A rank among the others: a row with its numbers, or of many ranks a tile.

import { factOf } from "./messages.js";
import { duration, figure, joined, kinds, OVER } from "./words.js";
import { fill, glyph, mark, put, putPath, span, svg } from "./nodes.js";
import { tint } from "./gauges.js";
import { placed } from "./places.js";
import { stacks } from "./lanes.js";

/** What a rank does now: the collective and for whom it waits, or its phase. */
function doing({ phase, detail }) {
	const [, name = "", whom = ""] = detail.match(/^in ([^\s,]+).*?(, for .*)?$/) ?? [];
	const short = name ? name + whom : detail;
	return (phase === "waiting" && short) || joined(phase, short);
}

/** One rank in a row: what it does, its last seconds, and a few numbers. */
export class Row {
	constructor() {
		for (const name of ["number", "what", "at", "lane", "step", "waits", "metric", "memory"]) this[name] = span(name);
		this.bars = kinds.map((kind) => svg("path", { "data-kind": kind }));
		this.lane.append((this.strip = svg("svg", { preserveAspectRatio: "none" }, ...this.bars)));
		this.children = [this.number, span("now", glyph(), this.what, this.at), this.lane, this.step, this.waits, this.metric, this.memory];
	}

	set(card, store, node, view) {
		const { cell } = store.about;
		put(this.number, String(card.rank));
		tint(this.number, card.rank);
		const near = card.place.startsWith(`${cell}, `) ? card.place.slice(cell.length + 2) : card.place;
		if (near.includes("/")) putPath(this.at, near);
		else fill(this.at, near, () => (near ? [placed(card.place, view, near, { tabindex: -1 })] : []));
		for (const name of ["step", "waits", "memory"]) put(this[name], factOf(card, name)?.value ?? "");
		mark(node, "data-warns", factOf(card, "fallbacks") ? true : null);
	}

	time(card, store) {
		const { phase, since } = card;
		// How long all are idle stands in the head.
		const told = OVER.has(phase) || phase === "running" || store.about.live?.idle;
		const long = told || since === null ? 0 : store.lasting(since);
		put(this.what, joined(doing(card), long >= 2 && duration(long)));
		mark(this.what, "title", this.what.textContent); // it may be cut
		const [first] = store.figures.values();
		const last = first?.get(card.rank)?.y.at(-1);
		put(this.metric, last === undefined ? "" : figure(last));
		const slots = [...(store.lanes.get(card.rank) ?? [])];
		const key = `${store.window.map(Math.floor)}${slots.at(-1)}`;
		if (key === this.laid) return;
		this.laid = key;
		const [from, to] = store.window;
		mark(this.strip, "viewBox", `0 0 ${to - from} 1`);
		for (const [i, path] of stacks(slots, store.window).entries()) mark(this.bars[i], "d", path);
	}
}

/** A tile of the dense grid: rank, phase and progress. */
export class Tile {
	number = span("number");
	children = [glyph(), this.number];

	set(card) {
		put(this.number, String(card.rank));
	}
}
