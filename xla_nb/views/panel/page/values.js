// Values from outside: each of these functions returns a value of its type for any input.

const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const list = (x) => (Array.isArray(x) ? x : []);
const objects = (x) => list(x).filter(isObject);
const isRank = (x) => Number.isInteger(x) && x >= 0;
// Python has cleaned the text: no control is left, or it is not shown.
const ODD = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const inert = (text) => text.replace(ODD, "\ufffd");
const SGR = /\x1b\[([0-9;:]*)m/g;
const plain = (text) => inert(text.replace(SGR, ""));

const raw = (x) => (typeof x === "string" ? x : "");
const number = (x) => (typeof x === "number" && Number.isFinite(x) ? x : null);
const amount = (x) => number(x) ?? 0;

/** The value of a key in a map, made if it is missing. */
function held(map, key, make) {
	if (!map.has(key)) map.set(key, make());
	return map.get(key);
}
