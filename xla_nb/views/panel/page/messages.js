// The parts of the kernel's messages, each read into a value of known shape.

import { amount, each, isObject, number, objects, ranks, raw, reader, string, strings } from "./values.js";
import { LEVELS, PHASES } from "./words.js";

export const factOf = ({ facts }, name) => facts.find(({ id }) => id === name);
const readFact = reader(each(string, "id label value"));
export const readBar = reader({ part: number, ...each(string, "label done left") });
const readDiagnosis = reader({ sentence: string, ranks, level: (x) => (LEVELS.includes(x) ? x : "calm") });
export const readCard = reader({
	phase: (x) => (PHASES.includes(x) ? x : "starting"),
	...each(string, "device host from place detail line"),
	...each(number, "since used waits memory"),
	rank: amount,
	facts: (x) => objects(x).map(readFact),
	bars: (x) => objects(x).slice(0, 3).map(readBar),
});
export const readTrouble = reader({ ranks, open: Boolean, told: Boolean, ...each(string, "who phase title place"), text: raw, others: strings });
export const readGroup = reader({ ranks, ...each(string, "who place note"), stack: raw });
export const readHang = reader({ verdict: string, groups: (x) => objects(x).map(readGroup) });
export const readAbout = reader({
	...each(string, "cell headline host free stopping record home"),
	diagnosis: (x) => (isObject(x) ? readDiagnosis(x) : null),
	unit: (x) => (x === "device" ? x : "rank"),
	...each(number, "started ended elapsed"),
	ok: (x) => (typeof x === "boolean" ? x : null),
	simulated: Boolean,
	notices: strings,
	lost: (x) => new Map(isObject(x) ? Object.entries(x).map((pair) => pair.map(string)) : []),
	ranks: amount,
	live: (x) => (isObject(x) ? readLive(x) : null),
});
const readLive = reader({ since: number, idle: Boolean });
export const readRan = reader({ ranks, number: amount, ...each(string, "label outcome told took") });
const readRow = reader({ verdict: string, cells: strings, lines: strings });
export const readVariables = reader({
	...each(string, "state after summary problem"),
	...each(strings, "titles notes"),
	old: Boolean,
	rows: (x) => objects(x).map(readRow),
});
