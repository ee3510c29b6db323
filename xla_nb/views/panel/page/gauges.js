// What is seen in several parts: a rank's hue, bars, and how many ranks are in which phase.

import { count, PHASES } from "./words.js";
import { div, fill, glyph, h, mark, put, show, span } from "./nodes.js";

// Eight hues far apart, then by the golden angle.
const HUES = [255, 45, 150, 325, 205, 80, 290, 15];
export const hue = (rank) => (rank === null ? 0 : (HUES[rank] ?? Math.round(rank * 137.508) % 360));
export const tint = (node, rank) => {
	node.style.setProperty("--xn-hue", hue(rank));
	return node;
};

export function stretch(node, part) {
	node.style.transform = `scaleX(${part.toFixed(3)})`;
}

/** Counts the ranks in each phase. */
export function tally(node, cards) {
	const counts = PHASES.map((phase) => [phase, cards.filter((card) => card.phase === phase).length]).filter(([, n]) => n);
	const chip = ([phase, n]) => h("li.chip", { "data-phase": phase, "data-count": n }, glyph(), count(n), span("word", ` ${phase}`));
	fill(node, String(counts), () => counts.map(chip));
}

/** A progress bar with its words. */
export function meter(name = "bar") {
	const fill = h("i");
	const track = h("div.track", { role: "progressbar" }, fill);
	const [label, done, left] = [span("bar-label"), span("bar-done"), span("bar-left")];
	const node = div(`bar.${name}`, label, track, done, left);
	const set = (bar) => {
		show(node, bar);
		if (!bar) return;
		const { part } = bar;
		put(label, bar.label);
		put(done, bar.done);
		put(left, bar.left);
		mark(track, "aria-label", bar.label || "progress");
		mark(track, "aria-valuenow", part === null ? null : Math.round(100 * part));
		mark(track, "aria-valuetext", bar.done);
		track.classList.toggle("xn-endless", part === null);
		stretch(fill, part ?? 1);
	};
	return { node, set, words: [label, done, left] };
}
