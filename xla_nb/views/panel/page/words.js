// What the panel calls things, and numbers, times and ranks in words.

const OVER = new Set(["finished", "early", "failed", "died", "stopped"]);

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (n) => whole.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const two = (n) => `${n}`.padStart(2, "0");
const joined = (...texts) => texts.filter(Boolean).join(" · ");

const timeOfDay = (date) => date.toTimeString().slice(0, 8);

/** In at most two units, as facts.py has it; one below a minute, since it goes on. */
function duration(seconds) {
	const s = Math.max(0, Math.floor(seconds));
	if (s < 60) return `${s} s`;
	const m = Math.floor(s / 60);
	return m < 60 ? `${m} min ${two(s % 60)} s` : `${count((m / 60) | 0)} h ${two(m % 60)} min`;
}

/** Ranks in order, as `0–3, 5` or `0, 1`: as wording.py writes them. */
function spans(numbers) {
	const runs = [];
	for (const n of [...numbers].sort((a, b) => a - b)) {
		if (runs.length && runs.at(-1).at(-1) === n - 1) runs.at(-1).push(n);
		else runs.push([n]);
	}
	return runs.map((run) => (run.length > 2 ? `${run[0]}–${run.at(-1)}` : run.join(", "))).join(", ");
}

const ranksOf = (numbers) => `rank${numbers.length === 1 ? "" : "s"} ${spans(numbers)}`;

/** A number, as facts.py has it. */
function figure(value) {
	if (!isFinite(value)) return `${value}`.replace("inity", "").replace("I", "i");
	const large = Math.abs(value);
	const short = Number(value.toPrecision(4));
	if (large >= 1e9 || (large < 1e-4 && large > 0)) return short.toExponential().replace("+", "");
	return large >= 1000 ? count(value) : `${short}`;
}
