// Values from outside: each of these functions returns a value of its type for any input.

export const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
export const list = (x) => (Array.isArray(x) ? x : []);
export const objects = (x) => list(x).filter(isObject);
export const isRank = (x) => Number.isInteger(x) && x >= 0;
// Python has cleaned the text; any control left is made visible.
const ODD = /[\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
export const inert = (text) =>
	text.replace(ODD, (c) => {
		const code = c.charCodeAt(0);
		if (code < 0x20) return String.fromCharCode(0x2400 + code);
		return code < 0xa0 ? "\ufffd" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
	});
export const SGR = /\x1b\[([0-9;:]*)m/g;
export const plain = (text) => inert(text.replace(SGR, "")).replaceAll("\x1b", "␛");

export const raw = (x) => (typeof x === "string" ? x : "");
export const string = (x) => plain(raw(x));
export const strings = (x) => list(x).map(string);
export const number = (x) => (typeof x === "number" && Number.isFinite(x) ? x : null);
export const amount = (x) => number(x) ?? 0;
export const ranks = (x) => list(x).filter(isRank);
export const reader = (shape) => (from) => {
	const value = {};
	for (const key in shape) value[key] = shape[key](from[key]);
	return value;
};

/** The value of a key in a map, made if it is missing. */
export function held(map, key, make) {
	if (!map.has(key)) map.set(key, make());
	return map.get(key);
}

export const each = (kind, names) => Object.fromEntries(names.split(" ").map((name) => [name, kind]));
