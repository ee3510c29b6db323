// Lines with ANSI colors and styles; the kernel has removed all other sequences.

import { inert, plain, SGR } from "./values.js";
import { bounded } from "./words.js";
import { div, h, span } from "./nodes.js";

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const UNFLAGS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };
const cube = (n) => (n % 6 ? 55 + 40 * (n % 6) : 0);

function indexed(n) {
	if (n < 16) return `var(--xn-ansi${n})`;
	const rgb = n > 231 ? Array(3).fill(8 + 10 * (n - 232)) : [(n - 16) / 36, (n - 16) / 6, n - 16].map((k) => cube(Math.floor(k)));
	return `rgb(${rgb})`;
}

function restyle(style, sequence) {
	let next = { ...style };
	const codes = sequence.split(/[;:]/).map(Number);
	for (let i = 0; i < codes.length; i++) {
		const code = codes[i];
		const [tens, ones] = [(code / 10) | 0, code % 10];
		const key = tens === 3 || tens === 9 ? "fg" : "bg";
		if (code === 0) next = {};
		else if (FLAGS[code]) next[FLAGS[code]] = true;
		else if (UNFLAGS[code]) for (const flag of UNFLAGS[code]) delete next[flag];
		else if (![3, 4, 9, 10].includes(tens)) continue;
		else if (ones < 8) next[key] = indexed(ones + (tens > 4 ? 8 : 0));
		else if (ones === 9) delete next[key];
		else if (tens < 5) {
			const rgb = codes[i + 1] === 2; // else 5: one of 256
			next[key] = rgb ? `rgb(${codes.slice(i + 2, i + 5).map((n) => n & 255)})` : indexed(codes[i + 2] & 255);
			i += rgb ? 4 : 2;
		}
	}
	return next;
}

/** A line as pairs [style, text]. */
function pieces(text) {
	const pairs = [];
	let style = {};
	text.split(SGR).forEach((part, i) => {
		if (i % 2) style = restyle(style, part);
		else if (part) pairs.push([style, plain(part)]);
	});
	return pairs;
}

function styled(style, text) {
	const names = Object.keys(style);
	if (!names.length) return text;
	const node = span(names.join("."), text);
	let { fg, bg } = style;
	if (style.inverse) [fg, bg] = [bg ?? "var(--xn-back)", fg ?? "var(--xn-text)"];
	if (fg) node.style.color = fg;
	if (bg) node.style.backgroundColor = bg;
	return node;
}

/** Fills a node with a line of output; matches of `needle` are marked. */
export function ansi(node, text, needle = "") {
	if (!needle && !text.includes("\x1b")) {
		node.textContent = inert(text);
		return;
	}
	const parts = pieces(text);
	// A match may span pieces, so pieces are cut at its ends.
	const low = parts.map(([, part]) => part).join("").toLowerCase();
	let [from, at] = [needle ? low.indexOf(needle) : -1, 0];
	for (let [style, part] of parts) {
		while (part) {
			const inside = from >= 0 && at >= from;
			const to = from < 0 ? Infinity : inside ? from + needle.length : from;
			const piece = styled(style, part.slice(0, to - at));
			node.append(inside ? h("mark.match", {}, piece) : piece);
			const taken = Math.min(part.length, to - at);
			part = part.slice(taken);
			at += taken;
			if (inside && at === to) from = low.indexOf(needle, at);
		}
	}
}

/** A traceback or a stack, with the notebook's own lines marked. */
export function block(text) {
	const node = h("pre.pre", { tabindex: 0 });
	for (const line of text.split("\n")) {
		const row = div(/Cell In\s?\[|<ipython-input/.test(line) ? "code.own" : "code");
		ansi(row, bounded(line));
		node.append(row);
	}
	return node;
}
