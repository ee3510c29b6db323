// The live panel of a run: all ranks, their output, Stop and Stacks.
//
// Messages only change the store (one per model, bounded). Views draw what changed, one animation
// frame at a time and only while visible: a page that draws for each message falls behind. Text
// from ranks is only ever set as text, and the page goes by ids, never by words of the kernel.

const PATIENCE = 800; // ms for the kernel to answer a request
const HELD = 8000; // lines held over all ranks,
const HELD_EACH = 30; // at least this many of each,
const HELD_FOCUSED = 2000; // and this many of a selected one
const ROWS = 1000; // lines in the page while scrolled up,
const ROWS_LIVE = 100; // and while following: more would cost frames
const LONGEST = 4000; // characters of a line
const POINTS = 2000; // of one line of a figure
const WINDOW = 60; // seconds of a lane
const FOLDS = 200; // rows of output that an equal line of another rank may join
const PAGE = Math.random().toString(36).slice(2); // another one after a reload

// --- values from outside ---

const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const list = (x) => (Array.isArray(x) ? x : []);
const objects = (x) => list(x).filter(isObject);
const isRank = (x) => Number.isInteger(x) && x >= 0;

// Python has cleaned the text; any control left is made visible.
const ODD = /[\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const inert = (text) =>
	text.replace(ODD, (c) => {
		const code = c.charCodeAt(0);
		if (code < 0x20) return String.fromCharCode(0x2400 + code);
		return code < 0xa0 ? "\ufffd" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
	});
const SGR = /\x1b\[([0-9;:]*)m/g;
const plain = (text) => inert(text.replace(SGR, "")).replaceAll("\x1b", "␛");

// Each of these returns a value of its type for any input.
const raw = (x) => (typeof x === "string" ? x : "");
const string = (x) => plain(raw(x));
const strings = (x) => list(x).map(string);
const number = (x) => (typeof x === "number" && Number.isFinite(x) ? x : null);
const amount = (x) => number(x) ?? 0;
const ranks = (x) => list(x).filter(isRank);
const reader = (shape) => (from) => {
	const value = {};
	for (const key in shape) value[key] = shape[key](from[key]);
	return value;
};

/** The value of a key in a map, made if it is missing. */
function held(map, key, make) {
	if (!map.has(key)) map.set(key, make());
	return map.get(key);
}

const each = (kind, names) => Object.fromEntries(names.split(" ").map((name) => [name, kind]));

const readFact = reader(each(string, "id label value"));
const readBar = reader({ part: number, ...each(string, "label done left") });
const readDiagnosis = reader({ sentence: string, ranks, level: (x) => (LEVELS.includes(x) ? x : "calm") });
const readCard = reader({
	phase: (x) => (PHASES.includes(x) ? x : "starting"),
	...each(string, "device host from place detail line"),
	...each(number, "since used step waits rss"),
	rank: amount,
	facts: (x) => objects(x).map(readFact),
	bars: (x) => objects(x).slice(0, 3).map(readBar),
});
const readTrouble = reader({ ranks, open: Boolean, told: Boolean, ...each(string, "who phase title place"), text: raw, others: strings });
const readGroup = reader({ ranks, ...each(string, "who place note"), stack: raw });
const readHang = reader({ verdict: string, groups: (x) => objects(x).map(readGroup) });
const readAbout = reader({
	...each(string, "cell headline host stopping record home"),
	diagnosis: (x) => (isObject(x) ? readDiagnosis(x) : null),
	unit: (x) => (x === "device" ? x : "rank"),
	...each(number, "started ended elapsed"),
	ok: (x) => (typeof x === "boolean" ? x : null),
	simulated: Boolean,
	notices: strings,
	lost: (x) => new Map(isObject(x) ? Object.entries(x).map((pair) => pair.map(string)) : []),
	ranks: amount,
});

// --- words ---

// Most urgent first; the style sheet gives each a shape and a color.
const PHASES = "early failed died waiting compiling starting running stopped finished".split(" ");
const OVER = new Set(["finished", "early", "failed", "died", "stopped"]);
const LEVELS = ["calm", "warning", "bad"];
// What a rank's seconds go into, in the order of a slot's numbers.
const KINDS = { compiling: "compiling", running: "running", others: "waiting for others", data: "waiting for data" };
const kinds = Object.keys(KINDS);

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (n) => whole.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const two = (n) => String(n).padStart(2, "0");
const joined = (...texts) => texts.filter(Boolean).join(" · ");

function duration(seconds) {
	const s = Math.max(0, Math.floor(seconds));
	if (s < 60) return `${s} s`;
	const m = Math.floor(s / 60);
	return m < 60 ? `${m}:${two(s % 60)}` : `${Math.floor(m / 60)}:${two(m % 60)}:${two(s % 60)}`;
}

/** How long a step takes. */
function stepTime(seconds) {
	if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
	return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

const percent = (part) => `${Math.round(100 * part)} %`;
const mebibytes = (bytes) => (bytes < 1e10 ? `${count(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);

/** Ranks in order, as `0–3, 5`. */
function spans(numbers) {
	const runs = [];
	for (const n of [...numbers].sort((a, b) => a - b)) {
		if (runs.length && runs.at(-1)[1] === n - 1) runs.at(-1)[1] = n;
		else runs.push([n, n]);
	}
	return runs.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
}

function figure(value) {
	if (!isFinite(value)) return String(value);
	const large = Math.abs(value);
	if (large >= 1e9 || (large < 1e-3 && large > 0)) return value.toExponential(2);
	return large >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

// --- nodes ---

/** Makes nodes: `kind` is a tag with classes (`div.log`), `label` the accessible name. */
const maker = (create) => (kind, attributes, ...children) => {
	const [tag, ...names] = kind.split(".");
	const node = create(tag);
	if (names.length) node.setAttribute("class", names.map((name) => `xn-${name}`).join(" "));
	for (const name in attributes) {
		const value = attributes[name];
		if (typeof value === "function") node.addEventListener(name, value);
		else if (value !== null) node.setAttribute(name === "label" ? "aria-label" : name, value);
	}
	node.append(...children);
	return node;
};
const h = maker((tag) => document.createElement(tag));
const svg = maker((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
const div = (names, ...children) => h(`div.${names}`, {}, ...children);
const span = (names, ...children) => h(`span.${names}`, {}, ...children);
const status = (names) => h(`div.${names}`, { role: "status" });
const glyph = () => h("i.glyph", { "aria-hidden": true });
const section = (name, label, ...children) => h(`section.${name}`, { label }, ...children);
const button = (text, click, attributes, name = "button") =>
	h(`button.${name}`, { type: "button", click, ...attributes }, text);
const search = (label, input) => h("input.filter", { type: "search", label, placeholder: label, spellcheck: "false", input });
const link = (text, click) => button(text, click, {}, "link");

// Which sections are folded: the page remembers it for all panels, where it may.
const STORED = "xla_nb.folded";
const folded = () => {
	try {
		return new Set(JSON.parse(localStorage.getItem(STORED) ?? "[]"));
	} catch {
		return new Set();
	}
};

/** Puts a title that folds a section into its head. */
function folding(node, name, words, into) {
	const set = (closed) => {
		node.classList.toggle("xn-folded", closed);
		mark(toggle, "aria-expanded", !closed);
	};
	const flip = () => {
		const names = folded();
		const closed = !node.classList.contains("xn-folded");
		names[closed ? "add" : "delete"](name);
		set(closed);
		try {
			localStorage.setItem(STORED, JSON.stringify([...names]));
		} catch {
			// Not remembered, then.
		}
	};
	const toggle = button(words, flip, {}, "fold");
	into.prepend(h("h4.h", {}, toggle));
	set(folded().has(name));
	return node;
}

const option = ([value, text]) => h("option", { value }, text);

/** Sets the text of a node, if it differs. */
function put(node, text) {
	if (node.xnText === text) return;
	node.xnText = text;
	node.textContent = text;
}

function mark(node, name, value) {
	if (value === null) node.removeAttribute(name);
	else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Puts nodes in order into another, moving only those out of place. */
function arrange(into, nodes) {
	let at = into.firstChild;
	for (const node of nodes) {
		if (node === at) at = at.nextSibling;
		else into.insertBefore(node, at);
	}
}

/** Replaces the children of a node when `key` changes. */
function fill(node, key, children) {
	if (node.xnKey === key) return;
	node.xnKey = key;
	node.replaceChildren(...children());
}

function show(node, shown) {
	if (node.hidden === Boolean(shown)) node.hidden = !shown;
}

// Eight hues far apart, then by the golden angle.
const HUES = [255, 45, 150, 325, 205, 80, 290, 15];
const tint = (node, rank) => {
	const hue = rank === null ? 0 : (HUES[rank] ?? Math.round(rank * 137.508) % 360);
	node.style.setProperty("--xn-hue", hue);
	return node;
};

function stretch(node, part) {
	node.style.transform = `scaleX(${part.toFixed(3)})`;
}

/** Counts the ranks in each phase. */
function tally(node, cards) {
	const counts = PHASES.map((phase) => [phase, cards.filter((card) => card.phase === phase).length]).filter(([, n]) => n);
	const chip = ([phase, n]) => h("li.chip", { "data-phase": phase, "data-count": n }, glyph(), count(n), span("word", ` ${phase}`));
	fill(node, String(counts), () => counts.map(chip));
}

/** A progress bar with its words. */
function meter(name = "bar") {
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

async function copy(text) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		// No permission, or a page without https.
		const give = (event) => {
			event.clipboardData.setData("text/plain", text);
			event.preventDefault();
		};
		document.addEventListener("copy", give, { capture: true, once: true });
		document.execCommand("copy");
	}
}

// --- ANSI colors and styles; the kernel has removed all other sequences ---

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
		const [tens, ones] = [Math.floor(code / 10), code % 10];
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
function ansi(node, text, needle = "") {
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

// A copy: a slice would keep the whole string in memory.
const bounded = (text) =>
	text.length <= LONGEST
		? text
		: `${` ${text.slice(0, LONGEST)}`.slice(1)}\x1b[m … ${count(text.length - LONGEST)} more characters`;

/** A traceback or a stack, with the notebook's own lines marked. */
function block(text) {
	const node = h("pre.pre", { tabindex: 0 });
	for (const line of text.split("\n")) {
		const row = div(/Cell In\s?\[|<ipython-input/.test(line) ? "code.own" : "code");
		ansi(row, bounded(line));
		node.append(row);
	}
	return node;
}

// --- the store ---

const encoder = new TextEncoder();
const bytes = (text) => (/^[\0-\x7f]*$/.test(text) ? text.length : encoder.encode(text).length);

/** The lines held, by rank (null is the cell itself), numbered in order of arrival. */
class Lines {
	byRank = new Map();
	received = new Map(); // number of lines by rank, with those not sent
	newest = new Map(); // where the last block of a stream starts
	next = 0;
	ranks = 1;
	focused = new Set();

	cap(rank) {
		const fair = Math.max(HELD_EACH, Math.floor(HELD / this.ranks));
		return this.focused.has(rank) ? Math.max(HELD_FOCUSED, fair) : fair;
	}

	add(rank, stream, start, skipped, lines) {
		const file = `${rank} ${stream}`;
		if (start <= (this.newest.get(file) ?? -1)) return; // sent again
		if (lines.length) this.newest.set(file, start);
		const all = held(this.byRank, rank, () => []);
		if (skipped > 0) all.push({ id: this.next++, rank, stream, at: start, gap: skipped, text: "" });
		all.push(...this.read(rank, stream, start, lines));
		all.splice(0, Math.max(0, all.length - this.cap(rank)));
		this.received.set(rank, this.total(rank) + skipped + lines.length);
	}

	/** Lines with their offsets in the file, exact unless Python replaced characters. */
	read(rank, stream, start, lines) {
		let at = start;
		return lines.map((line) => {
			const entry = { id: this.next++, rank, stream, at, gap: 0, text: bounded(raw(line)) };
			at += bytes(raw(line)) + 1;
			return entry;
		});
	}

	/** The last `most` matching lines of a rank (undefined: of all) newer than `id`, in order. */
	since(rank, id, matches, most) {
		const lines = [];
		for (const all of rank === undefined ? this.byRank.values() : [this.byRank.get(rank) ?? []]) {
			const enough = lines.length + most;
			for (let i = all.length - 1; i >= 0 && all[i].id > id && lines.length < enough; i--)
				if (matches(all[i])) lines.push(all[i]);
		}
		return lines.sort((a, b) => a.id - b.id).slice(-most);
	}

	total(rank) {
		if (rank !== undefined) return this.received.get(rank) ?? 0;
		return [...this.received.values()].reduce((sum, n) => sum + n, 0);
	}
}

class Store {
	about = readAbout({});
	bar = null;
	hang = null;
	cards = new Map();
	troubles = [];
	figures = new Map();
	lanes = new Map(); // by rank: the numbers of KINDS by second
	memory = new Map(); // by rank: a line of MiB
	lines = new Lines();
	stacks = { state: "closed", groups: [] };
	stop = "no"; // no, asked, acknowledged, interrupted
	say = "";
	seq = null;
	offset = 0; // the kernel's clock minus the page's, in seconds
	views = new Set();
	requests = new Map();
	asked = 0;
	updated = new Date();
	frozen = null; // the kernel's time when the page lost it

	constructor(model) {
		this.model = model;
		this.run = String(model.get("run") ?? "");
		this.receive = (message) => this.take(message);
		this.lost = () => this.freeze();
		model.on("msg:custom", this.receive);
		model.on("comm_live_update", this.lost);
		this.askWhole();
	}

	close() {
		this.model.off("msg:custom", this.receive);
		this.model.off("comm_live_update", this.lost);
		for (const { timer } of this.requests.values()) clearTimeout(timer);
		clearTimeout(this.later);
	}

	get over() {
		return this.about.ended !== null || this.about.ok !== null;
	}

	get now() {
		return this.frozen ?? Date.now() / 1000 + this.offset;
	}

	get elapsed() {
		const { started, ended, elapsed } = this.about;
		if (started === null || (this.over && elapsed !== null)) return elapsed ?? 0;
		return (ended ?? this.now) - started;
	}

	changed(...parts) {
		for (const view of this.views) view.changed(...parts);
	}

	/** The kernel was restarted: nothing more comes, and Stop would hit another cell. */
	freeze() {
		if (this.over) return;
		this.frozen = this.now;
		const headline = `Kernel restarted; last update ${this.updated.toTimeString().slice(0, 8)}`;
		this.describe({ ...this.about, ended: this.now, headline, diagnosis: null });
		const ended = [...this.cards.values()].filter(({ phase }) => !OVER.has(phase));
		this.update(ended.map((card) => ({ ...card, phase: "stopped" })));
		this.speak(`Its ranks ended with it. xla_nb.open_run("${this.run}") shows what they had done.`);
	}

	thaw() {
		this.frozen = null;
		this.say = "";
		this.askWhole();
	}

	// messages from the kernel

	take(message) {
		this.updated = new Date();
		if (this.frozen !== null) this.thaw();
		this.answer();
		const handlers = { news: "news", ack: "acknowledged", stacks: "stacked", earlier: "fetched" };
		if (isObject(message) && message.run === this.run && Object.hasOwn(handlers, message.type))
			this[handlers[message.type]](message);
		else console.debug("xla_nb: ignored a message", message?.run, message?.type);
	}

	news(message) {
		if (!Number.isInteger(message.seq)) return;
		const all = Boolean(message.whole);
		if (all) {
			clearTimeout(this.later);
			this.later = undefined;
			message = { bar: null, hang: null, cards: [], troubles: [], figures: [], lanes: [], ...message };
		} else if (message.seq !== this.seq + 1) this.askWhole();
		this.seq = message.seq;
		this.offset = (number(message.now) ?? this.now) - Date.now() / 1000;
		if (isObject(message.about)) this.describe(readAbout(message.about));
		for (const [name, read] of [["bar", readBar], ["hang", readHang]]) {
			if (!(name in message)) continue;
			this[name] = isObject(message[name]) ? read(message[name]) : null;
			this.changed("head");
		}
		if (message.cards) this.update(objects(message.cards), all);
		if (message.troubles) {
			this.troubles = objects(message.troubles).map(readTrouble);
			this.changed("troubles");
		}
		if (message.figures) this.plot(objects(message.figures), all);
		if (message.lanes) this.lay(objects(message.lanes), all);
		if (message.lines) this.print(objects(message.lines));
	}

	describe(about) {
		this.about = about;
		if (this.over && this.stop !== "no") {
			this.stop = "no";
			this.say = "";
		}
		this.lines.ranks = Math.max(this.lines.ranks, about.ranks);
		this.changed("head", "output");
	}

	update(cards, all) {
		if (all) this.cards = new Map();
		for (const card of cards) {
			if (!isRank(card.rank)) continue;
			const read = readCard(card);
			this.cards.set(card.rank, read);
			if (read.rss !== null) this.weigh(read);
		}
		this.lines.ranks = Math.max(this.lines.ranks, this.cards.size);
		this.changed("head", "ranks");
	}

	plot(figures, all) {
		if (all) this.figures = new Map();
		for (const { name, rank, replace, points } of figures) {
			if (typeof name !== "string" || !isRank(rank) || !Array.isArray(points)) continue;
			this.trace(held(this.figures, name, () => new Map()), rank, replace, points);
		}
		this.changed("figures", "ranks");
	}

	/** Notes the memory of a rank, at most once a second. */
	weigh({ rank, rss }) {
		const at = this.now - (this.about.started ?? this.now);
		const { x, y, t } = held(this.memory, rank, () => ({ x: [], y: [], t: [] }));
		if (x.length && at - x.at(-1) < 1) return;
		for (const [list, value] of [[x, at], [y, rss / 2 ** 20], [t, at]]) list.push(value);
		this.changed("figures");
		if (x.length > 400) for (const list of [x, y, t]) list.splice(0, list.length, ...list.filter((_, i) => i % 2 === 0));
	}

	/** Keeps what the last seconds of ranks went into. */
	lay(lanes, all) {
		if (all) this.lanes = new Map();
		for (const { rank, slots } of lanes) {
			if (!isRank(rank)) continue;
			const lane = held(this.lanes, rank, () => new Map());
			for (const [second, ...parts] of list(slots).map(list)) {
				if (Number.isInteger(second)) lane.set(second, parts.slice(0, 4).map(amount));
			}
			const newest = Math.max(...lane.keys());
			for (const second of lane.keys()) if (second <= newest - WINDOW) lane.delete(second);
		}
		this.changed("ranks");
	}

	/** The last seconds that lanes show: from, to. */
	get window() {
		const to = this.about.ended ?? this.now;
		const lasted = this.about.started === null ? 0 : to - this.about.started;
		return [to - Math.min(WINDOW, Math.max(10, lasted)), to];
	}

	/** Adds points to a rank's line of a figure. */
	trace(lines, rank, replace, points) {
		if (replace) lines.delete(rank);
		const { x, y, t } = held(lines, rank, () => ({ x: [], y: [], t: [] }));
		for (const point of points.map(list)) {
			if (number(point[0]) === null) continue;
			x.push(point[0]);
			y.push(Number(point[1] ?? NaN));
			t.push(number(point[2]) ?? point[0]);
		}
		for (const values of [x, y, t]) values.splice(0, values.length - POINTS);
	}

	print(blocks) {
		for (const { rank, stream, start, skipped, lines } of blocks) {
			const valid = (rank === null || isRank(rank)) && ["out", "err"].includes(stream) && Array.isArray(lines);
			if (valid && number(start) !== null) this.lines.add(rank, stream, start, amount(skipped), lines);
		}
		this.changed("output");
	}

	// requests to the kernel

	send(message) {
		try {
			this.model.send({ ...message, run: this.run });
		} catch (error) {
			console.debug("xla_nb: could not send", message.type, error);
		}
	}

	/** Tells the kernel that this page is there, at most once a second. */
	answer() {
		const now = performance.now();
		if (now - (this.answered ?? -Infinity) < 1000) return;
		this.answered = now;
		this.send({ type: "here", page: PAGE });
	}

	/** Asks for everything, at most once a second. */
	askWhole() {
		const wait = (this.askedWhole ?? -Infinity) + 1000 - performance.now();
		if (wait > 0) {
			const again = () => {
				this.later = undefined;
				this.askWhole();
			};
			this.later ??= setTimeout(again, wait);
			return;
		}
		this.askedWhole = performance.now();
		this.send({ type: "whole", page: PAGE });
	}

	/** Sends a request; calls `received` when the kernel has it, `silent` if it is late. */
	ask(message, { received, silent, answered }) {
		const request = ++this.asked;
		const timer = setTimeout(silent, PATIENCE);
		this.requests.set(request, { timer, received, answered });
		if (this.requests.size > 50) this.requests.delete(this.requests.keys().next().value);
		this.send({ ...message, request });
	}

	acknowledged({ request }) {
		const waiting = this.requests.get(request);
		if (!waiting) return;
		clearTimeout(waiting.timer);
		waiting.received?.();
		waiting.received = null;
	}

	speak(text) {
		this.say = text;
		this.changed("head");
	}

	/** Asks the kernel to stop, and at another click to stop at once; interrupts it if it is silent. */
	halt() {
		if (this.over) return;
		if (this.stop === "asked" || this.stop === "interrupted") {
			this.interrupt();
			return;
		}
		const again = this.stop === "acknowledged";
		const received = () => {
			if (this.stop !== "asked") return;
			this.stop = "acknowledged";
			this.speak(again ? "Ending the ranks…" : "Stopping the ranks. Click again to end them now.");
		};
		this.stop = "asked";
		this.speak("Asking the kernel to stop the ranks…");
		this.ask({ type: "stop" }, { received, silent: () => this.interrupt() });
	}

	async interrupt() {
		if (this.over) return;
		this.stop = "interrupted";
		this.speak("Interrupting the kernel…");
		try {
			await this.model.widget_manager.kernel.interrupt();
			if (!this.over) this.speak("Interrupted the kernel.");
		} catch {
			// Some front ends do not give widgets the kernel.
			this.speak("This page cannot interrupt the kernel. Press ■ (Interrupt the kernel) in the toolbar.");
		}
	}

	askStacks() {
		this.setStacks("asking", this.stacks.groups);
		const silent = () => {
			if (this.stacks.state === "asking") this.setStacks("fallback", this.places());
		};
		this.ask({ type: "stacks" }, { silent });
	}

	setStacks(state, groups = []) {
		this.stacks = { state, groups };
		this.changed("stacks", "head");
	}

	stacked(message) {
		this.acknowledged(message);
		this.setStacks("answered", objects(message.groups).map(readGroup));
	}

	/** The last known place of each rank, for a kernel that cannot answer. */
	places() {
		const groups = new Map();
		for (const { rank, phase, place, detail } of this.cards.values()) {
			const note = detail ? `${phase}: ${detail}` : phase;
			const group = { ranks: [], place, stack: "", note };
			held(groups, `${place}\n${note}`, () => group).ranks.push(rank);
		}
		return [...groups.values()].map((group) => ({ ...group, who: `ranks ${spans(group.ranks)}` }));
	}

	focus() {
		const selected = [...this.views].map((view) => view.rank).filter((rank) => rank !== undefined);
		this.lines.focused = new Set(selected);
		this.send({ type: "focus", rank: selected.at(-1) ?? null });
	}

	fetched(message) {
		this.acknowledged(message);
		const { request, rank, stream, start, lines, first } = message;
		const { answered } = this.requests.get(request) ?? {};
		this.requests.delete(request);
		if (!answered || !Array.isArray(lines) || number(start) === null) return;
		answered(this.lines.read(rank, stream, start, lines), start, first === true);
	}
}

// --- the parts of a view: each has a node, and draws what the store holds ---
// `every`: ms between two calls of `draw`, which returns true to be called in the next frame too.

class Head {
	every = 100;

	constructor(view) {
		this.view = view;
		const { store } = view;
		this.sentence = span("headline");
		this.title = h("h3.title", {}, glyph(), this.sentence);
		const toggle = () => (store.stacks.state === "closed" ? store.askStacks() : store.setStacks("closed"));
		this.stacks = button("Stacks", toggle, { "aria-expanded": false });
		this.stop = button("Stop", () => store.halt(), { "data-action": "stop" });
		this.cell = span("cell");
		this.ranks = span("machine");
		this.host = span("machine");
		this.elapsed = span("elapsed");
		this.bar = meter("runbar");
		this.say = status("say");
		this.hang = status("hang");
		this.notices = h("ul.notices", { label: "Notices" });
		this.live = h("div.live", { "aria-live": "polite" });
		const sub = div("sub", this.cell, this.ranks, this.host, this.elapsed, ...this.bar.words);
		const actions = div("actions", this.stacks, this.stop);
		this.node = h("header.head", {}, this.title, actions, sub, this.bar.node, this.say, this.hang, this.notices, this.live);
	}

	get state() {
		const { about, over, stop, cards } = this.view.store;
		if (this.view.store.frozen !== null) return "stopped";
		if (over) return about.ok === false ? "failed" : "ok";
		if (stop !== "no" || about.stopping) return "stopping";
		return [...cards.values()].some(({ phase }) => phase !== "starting") ? "running" : "starting";
	}

	draw(now) {
		const { store, root } = this.view;
		const { about, over, stacks, hang } = store;
		const { state } = this;
		const { sentence, level } = about.diagnosis ?? { sentence: about.headline, level: state === "failed" ? "bad" : "calm" };
		mark(root, "data-state", state);
		mark(root, "data-level", level);
		mark(this.title, "data-phase", { ok: "finished", stopping: "waiting" }[state] ?? state);
		put(this.sentence, sentence);
		put(this.stop, state === "stopping" ? "Stopping…" : "Stop");
		this.stop.disabled = over;
		this.stacks.disabled = over && stacks.state === "closed";
		mark(this.stacks, "aria-expanded", stacks.state !== "closed");
		this.describe();
		this.bar.set(store.bar);
		const say = store.say || about.stopping;
		show(this.say, say);
		put(this.say, say);
		show(this.hang, hang);
		const where = () => h("details", {}, h("summary", {}, "Where each rank was"), ...hang.groups.map((one) => group(one, this.view)));
		const verdict = hang && !sentence.startsWith(hang.verdict) ? hang.verdict : "";
		fill(this.hang, verdict + JSON.stringify(hang), () => (hang ? [verdict, where()] : []));
		fill(this.notices, about.notices.join("\n"), () => about.notices.map((text) => h("li.notice", {}, text)));
		// Spoken at most every five seconds.
		const due = over || now - (this.spoken ?? -5000) >= 5000;
		if (!due || !sentence || this.live.xnText === sentence) return;
		this.spoken = now;
		put(this.live, sentence);
	}

	/** The small print: cell, machine, time. */
	describe() {
		const { store } = this.view;
		const { about, over, elapsed, bar } = store;
		const name = about.cell || store.run;
		fill(this.cell, name, () => [placed(name, this.view)]);
		const total = plural(Math.max(about.ranks, store.cards.size), about.unit);
		put(this.ranks, about.simulated ? `${total} of a simulated TPU host` : total);
		show(this.host, about.host);
		put(this.host, about.host);
		mark(this.host, "data-phase", about.lost.size ? "died" : null);
		put(this.elapsed, over && elapsed < 60 ? `${elapsed.toFixed(1)} s` : duration(elapsed));
		for (const words of this.bar.words) show(words, bar);
	}
}

class Troubles {
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
		const head = div("trouble-head", glyph(), h("strong", {}, who), told ? "" : span("own", placed(place, this.view)), links);
		const lines = [told ? "" : div("trouble-title", title), ...others.map((line) => div("other", line))];
		const traceback = () => h("details", { open: open ? "" : null }, h("summary", {}, "Traceback"), block(text));
		return h("article.trouble", { "data-ranks": ranks, "data-phase": phase }, head, ...lines, text && traceback());
	}
}

class Stacks {
	every = 0;

	constructor(view) {
		const { store } = view;
		this.view = view;
		this.words = status("quiet");
		this.groups = div("groups");
		const again = link("Ask again", () => store.askStacks());
		const close = link("Close stacks", () => store.setStacks("closed"));
		const head = div("bar-head", h("h4.h", {}, "Where each rank is"), again, close);
		this.node = section("stacks", "Stacks", head, this.words, this.groups);
	}

	draw() {
		const { state, groups } = this.view.store.stacks;
		show(this.node, state !== "closed");
		mark(this.node, "data-state", state);
		const words = {
			asking: "Asking the ranks…",
			fallback: "This kernel cannot answer while the cell runs. Last known lines:",
			answered: groups.length ? "" : "No rank answered.",
		};
		put(this.words, words[state]);
		fill(this.groups, groups, () => groups.map((one) => group(one, this.view)));
	}
}

function group({ ranks, who, place, stack, note }, view) {
	const many = ranks.length > 2 ? span("quiet", `(${ranks.length})`) : "";
	const where = [span("own", place ? placed(place, view) : "unknown line"), span("quiet", note)];
	const head = div("trouble-head", h("strong", {}, who), many, ...where);
	return h("article.group", { "data-ranks": ranks }, head, stack ? block(stack) : "");
}

// --- places ---

/** A place of the notebook, as a link where the page has the notebook. */
function placed(place, view, words = place) {
	const number = place.match(/^Cell In\[(\d+)\]/)?.[1];
	const notebook = view.root.closest?.(".jp-Notebook");
	if (!number || !notebook) return words;
	const line = Number(place.match(/, line (\d+)/)?.[1] ?? 1);
	return h("button.link", { type: "button", title: `Go to ${place}`, click: (event) => (event.stopPropagation(), reveal(view, number, line)) }, words);
}

/** Shows a line of a cell. The editor is CodeMirror's, whose view its nodes know. */
function reveal(view, number, line) {
	const own = view.root.closest(".jp-Cell");
	const prompt = (cell) => cell.querySelector(".jp-InputPrompt")?.textContent ?? "";
	const isIt = (cell) => prompt(cell).includes(`[${number}]`) || (cell === own && view.store.about.cell === `Cell In[${number}]`);
	const cell = [...view.root.closest(".jp-Notebook").querySelectorAll(".jp-CodeCell")].find(isIt);
	if (!cell) return view.store.speak(`Cell In[${number}] is no longer in this notebook.`);
	const content = cell.querySelector(".cm-content");
	const editor = content?.cmTile?.view ?? content?.cmView?.view;
	const found = editor && line <= editor.state.doc.lines ? editor.state.doc.line(line) : null;
	if (found) {
		editor.focus();
		editor.dispatch({ selection: { anchor: found.from, head: found.to } });
	}
	const row = found && editor.domAtPos(found.from).node;
	const at = (row?.nodeType === 1 ? row : row?.parentElement)?.closest(".cm-line") ?? content ?? cell;
	at.scrollIntoView({ block: "center" });
}

// --- ranks ---

/** What a rank does now: the collective and for whom it waits, or its phase. */
function doing({ phase, detail }) {
	const [, name = "", whom = ""] = detail.match(/^in ([^\s,]+).*?(, for .*)?$/) ?? [];
	const short = name ? name + whom : detail;
	return (phase === "waiting" && short) || joined(phase, short);
}

/** A rank's last seconds as a gradient, which fits any width and theme. */
function stripes(slots, [from, to]) {
	const stops = [];
	const at = (t) => `${(100 * Math.min(1, Math.max(0, (t - from) / (to - from)))).toFixed(2)}%`;
	let [kind, begun, ended] = [null, from, from];
	const close = () => kind && stops.push(`var(--xn-lane-${kind}) ${at(begun)} ${at(ended)}`);
	for (const [second, parts] of slots) {
		let t = second;
		if (t - ended > 0.05) {
			close();
			stops.push(`transparent ${at(ended)} ${at(t)}`);
			[kind, begun, ended] = [null, t, t];
		}
		for (const [i, name] of kinds.entries()) {
			if (!(parts[i] > 0)) continue;
			if (name !== kind) {
				close();
				[kind, begun] = [name, t];
			}
			t += parts[i];
			ended = t;
		}
	}
	close();
	return stops.length ? `linear-gradient(90deg, ${stops.join(", ")}, transparent ${at(ended)})` : "none";
}

/** One rank in a row: what it does, its last seconds, and a few numbers. */
class Row {
	constructor() {
		for (const name of ["number", "what", "at", "lane", "step", "waits", "metric", "memory"]) this[name] = span(name);
		this.children = [this.number, span("now", glyph(), this.what, this.at), this.lane, this.step, this.waits, this.metric, this.memory];
	}

	set(card, store, node, view) {
		const { cell } = store.about;
		put(this.number, String(card.rank));
		tint(this.number, card.rank);
		const near = card.place.startsWith(`${cell}, `) ? card.place.slice(cell.length + 2) : card.place;
		fill(this.at, card.place, () => (card.place ? [placed(card.place, view, near)] : []));
		put(this.step, card.step === null ? "" : stepTime(card.step));
		put(this.waits, card.waits === null ? "" : percent(card.waits));
		put(this.memory, card.rss === null ? "" : mebibytes(card.rss));
		const warns = card.facts.some(({ id }) => id === "fallbacks");
		mark(node, "data-warns", warns || null);
		node.style.backgroundSize = `${Math.round(100 * (card.bars[0]?.part ?? 0))}% 2px`;
	}

	time(card, store) {
		const { phase, since } = card;
		const long = since === null || OVER.has(phase) || phase === "running" ? 0 : store.now - since;
		put(this.what, joined(doing(card), long >= 2 && duration(long)));
		const [first] = store.figures.values();
		put(this.metric, first?.get(card.rank)?.y.length ? figure(first.get(card.rank).y.at(-1)) : "");
		const slots = [...(store.lanes.get(card.rank) ?? [])];
		const key = `${store.window.map(Math.floor)}${slots.at(-1)}`;
		if (key === this.laid) return;
		this.laid = key;
		this.lane.style.backgroundImage = stripes(slots, store.window);
	}
}

/** Everything known of one rank, below the rows. */
class Detail {
	constructor(view) {
		this.view = view;
		for (const name of ["number", "phase", "since", "device", "place", "what", "from"]) this[name] = span(name);
		this.last = div("last");
		this.bars = [meter(), meter(), meter()];
		this.used = h("i");
		this.gauge = h("span.gauge", { "aria-hidden": true }, this.used);
		this.facts = h("dl.facts");
		this.values = new Map();
		this.links = span("links", link("Close", () => view.focus(undefined)));
		this.node = h("div.detail", { role: "group", label: "The chosen rank" },
			div("card-head", this.number, span("state", glyph(), this.phase), this.since, this.place, this.what, span("space"), this.device, this.from, this.links),
			div("bars", ...this.bars.map((bar) => bar.node)),
			this.facts,
			this.last,
		);
	}

	set(card, store) {
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
		put(this.since, card.since === null || OVER.has(card.phase) ? "" : duration(store.now - card.since));
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

/** A tile of the dense grid: rank, phase and progress. */
class Tile {
	number = span("number");
	children = [glyph(), this.number];

	set(card, _store, node) {
		put(this.number, String(card.rank));
		node.style.backgroundSize = `${Math.round(100 * (card.bars[0]?.part ?? 0))}% 2px`;
	}
}

/** How urgent a rank is. Short waits do not count, or ranks would jump at every step. */
function urgency({ phase, since }, now) {
	const first = ["early", "failed", "died"].indexOf(phase);
	if (first >= 0) return first;
	return phase === "waiting" && since !== null && now - since > 5 ? 3 : 4;
}

/** The ranks of one host under its name, or all ranks if the run has no hosts. */
class Host {
	lost = span("lost");
	counts = h("ul.counts", { label: "Ranks by phase" });
	cards = div("cards");

	constructor(name) {
		this.head = div("host-head", glyph(), h("strong", {}, name), this.lost, this.counts);
		this.node = h("div.host", { role: "group", label: name || null }, this.head, this.cards);
	}

	set(ranks, counted, why) {
		mark(this.node, "data-phase", why === undefined ? null : "died");
		put(this.lost, why === undefined ? "" : joined("lost", why));
		mark(this.cards, "data-ranks", ranks);
		tally(this.counts, counted);
	}
}

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" };

class Ranks {
	boxes = new Map();
	hosts = new Map();
	groups = new Map(); // ranks by host, in order
	queue = []; // ranks to draw, a few in each frame
	needle = "";

	constructor(view) {
		this.view = view;
		this.title = span("words");
		this.counts = h("ul.counts", { label: "Ranks by phase" });
		const sort = (by) => button(`By ${by}`, () => this.sortBy(by), {}, "choice");
		this.sorts = { trouble: sort("trouble"), rank: sort("rank") };
		this.sorting = h("span.choices", { role: "group", label: "Order of ranks" }, ...Object.values(this.sorts));
		this.finder = search("Find ranks", () => {
			this.needle = this.finder.value.trim().toLowerCase();
			view.redraw("ranks");
		});
		const redraw = () => view.redraw("ranks");
		const at = ({ target }) => {
			const box = target.closest?.("[role=option]");
			return box ? Number(box.dataset.rank) : undefined;
		};
		const hover = (rank) => {
			this.hovered = rank;
			redraw();
		};
		this.grid = h("div.grid", {
			role: "listbox",
			label: "Ranks",
			keydown: (event) => this.key(event),
			click: (event) => this.pick(at(event)),
			focusin: (event) => {
				this.rove(at(event));
				redraw();
			},
			focusout: redraw,
			pointerover: (event) => hover(at(event)),
			pointerleave: () => hover(),
		});
		this.detail = new Detail(view);
		this.names = Object.fromEntries(["lane", "step", "waits", "metric", "memory"].map((name) => [name, span(name)]));
		const who = div("who", this.counts);
		const head = div("columns", who, ...Object.values(this.names));
		this.once = div("key");
		this.tools = div("bar-head", this.sorting, this.finder);
		const node = section("ranks", "All ranks", head, this.tools, this.grid, this.once, this.detail.node);
		this.node = folding(node, "ranks", this.title, who);
	}

	get every() {
		return this.size === "dense" ? 200 : 100;
	}

	draw(now) {
		const { cards } = this.view.store;
		show(this.node, cards.size);
		if (!cards.size) return false;
		this.resize(cards.size);
		if (!this.queue.length) this.queue = [...cards.keys()].filter((rank) => this.boxes.get(rank)?.card !== cards.get(rank));
		const some = this.boxes.size < cards.size ? cards.size : 64;
		for (const rank of this.queue.splice(0, some)) if (cards.has(rank)) this.fill(cards.get(rank));
		if (this.queue.length) return true;
		const { diagnosis } = this.view.store.about;
		const marked = new Set(diagnosis?.level === "calm" ? [] : diagnosis?.ranks);
		for (const [rank, box] of this.boxes) {
			const { node } = box;
			box.time?.(box.card, this.view.store);
			mark(node, "aria-selected", rank === this.view.rank);
			mark(node, "data-marked", marked.has(rank) || null);
		}
		tally(this.counts, [...cards.values()]);
		this.head([...cards.values()]);
		this.sort(now);
		this.group();
		this.explain();
		return false;
	}

	/** Names the columns with something to say; says once what no rank differs in. */
	head(cards) {
		const { store } = this.view;
		const shared = store.about.unit === "device" && cards.length > 1;
		const [from, to] = store.window;
		const [metric] = store.figures.keys();
		const has = (name) => !shared && cards.some((card) => card[name] !== null);
		const words = {
			lane: store.lanes.size ? `last ${Math.round(to - from)} s` : "",
			step: has("step") ? "step" : "",
			waits: has("waits") && cards.some(({ waits }) => waits >= 0.005) ? "waits" : "",
			metric: metric === undefined || shared ? "" : plain(metric),
			memory: has("rss") ? "memory" : "",
		};
		for (const name in words) put(this.names[name], words[name]);
		mark(this.node, "data-columns", Object.keys(words).filter((name) => words[name]).join(" "));
		const parts = cards.map(({ bars }) => bars[0]?.part ?? 0);
		mark(this.node, "data-uneven", Math.max(...parts) - Math.min(...parts) > 0.02 || null);
		const lanes = this.size === "rows" ? [...store.lanes.values()].flatMap((lane) => [...lane.values()]) : [];
		const seen = kinds.filter((_, i) => lanes.some((parts) => parts[i] > 0));
		const same = shared && cards[0].from ? [cards[0].from] : [];
		for (const { id, label, value } of cards[0].facts) {
			const differs = cards.some(({ facts }) => !facts.some((fact) => fact.id === id && fact.value === value));
			const own = !shared && ["steps", "memory", "cpu"].includes(id);
			if (cards.length > 1 && !differs && !own && !/^\S+ 1$/.test(value)) same.push(`${label} ${value}`);
		}
		const key = (kind) => span("kind", h("i", { "data-kind": kind }), KINDS[kind]);
		fill(this.once, String([seen, same]), () => [...seen.map(key), joined(...same)]);
	}

	resize(n) {
		put(this.title, plural(n, this.view.store.about.unit));
		show(this.tools, n > 8);
		const fits = n <= 32 ? "rows" : "dense";
		if (fits === this.size && this.boxes.size <= n) return;
		this.size = fits;
		if (!this.chosen) this.by = n > 8 ? "trouble" : "rank";
		mark(this.view.root, "data-size", fits);
		for (const map of [this.boxes, this.hosts, this.groups]) map.clear();
		this.grid.replaceChildren();
		this.queue = [];
	}

	fill(card) {
		const { rank, host, phase, place, detail, facts } = card;
		const box = held(this.boxes, rank, () => (this.size === "dense" ? new Tile() : new Row()));
		box.node ??= h(`div.rank.${this.size}`, { role: "option", tabindex: -1, "data-rank": rank }, ...box.children);
		box.card = card;
		const warning = facts.find(({ id }) => id === "fallbacks")?.label;
		const numbers = this.size === "rows" ? [card.step !== null && `${stepTime(card.step)} a step`, card.waits !== null && `waits ${percent(card.waits)}`] : [];
		box.label = joined(`${this.view.store.about.unit} ${rank}`, phase, place, detail, ...numbers, warning, host);
		mark(box.node, "data-phase", phase);
		mark(box.node, "aria-label", box.label);
		box.set(card, this.view.store, box.node, this.view);
	}

	/** Orders the ranks, unless the pointer or the keyboard is on one. */
	sort(now) {
		const { cards, about, now: clock } = this.view.store;
		const busy = this.hovered !== undefined || this.grid.contains(document.activeElement);
		const complete = this.order.length === this.boxes.size;
		if (complete && !this.resort && (busy || now - this.sorted < 500)) return;
		this.resort = false;
		this.sorted = now;
		for (const by in this.sorts) mark(this.sorts[by], "aria-pressed", by === this.by);
		const trouble = this.by === "trouble";
		const levels = new Map([...this.boxes.keys()].map((rank) => [rank, trouble ? urgency(cards.get(rank), clock) : 0]));
		const order = [...levels.keys()].sort((a, b) => levels.get(a) - levels.get(b) || a - b);
		// A host comes where its first rank does; a lost one may have none.
		this.groups = new Map(trouble ? [...about.lost.keys()].map((name) => [name, []]) : []);
		for (const rank of order) held(this.groups, cards.get(rank).host, () => []).push(rank);
		for (const [name, ranks] of this.groups) {
			const { cards } = held(this.hosts, name, () => new Host(name));
			arrange(cards, ranks.map((rank) => this.boxes.get(rank).node));
		}
		arrange(this.grid, [...this.groups.keys()].map((name) => this.hosts.get(name).node));
		this.grid.style.setProperty("--xn-each", Math.max(...[...this.groups.values()].map(({ length }) => length)));
		mark(this.grid, "data-hosts", this.groups.size);
		this.rove(this.boxes.has(this.active) ? this.active : this.order[0]);
	}

	get order() {
		return [...this.groups.values()].flat();
	}

	/** Labels each host, and hides what does not match the search. */
	group() {
		const { cards, about } = this.view.store;
		const matches = (text) => text.toLowerCase().includes(this.needle);
		const number = this.needle.match(/^(?:rank |device )?(\d+)$/)?.[1];
		for (const [rank, { node, label }] of this.boxes) show(node, number ? rank === Number(number) : matches(label));
		for (const [name, ranks] of this.groups) {
			const host = this.hosts.get(name);
			// Those of an only host are counted in the head.
			const counted = this.groups.size > 1 ? ranks.map((rank) => cards.get(rank)) : [];
			host.set(ranks.length, counted, about.lost.get(name));
			show(host.node, (!number && matches(name)) || ranks.some((rank) => !this.boxes.get(rank).node.hidden));
		}
	}

	sortBy(by) {
		this.by = by;
		this.chosen = true;
		this.resort = true;
		this.view.redraw("ranks");
	}

	tick() {
		this.view.changed("ranks"); // waits get long without a message
	}

	/** Moves the one tab stop of the cards. */
	rove(rank) {
		if (rank === undefined) return;
		this.boxes.get(this.active)?.node.setAttribute("tabindex", "-1");
		this.boxes.get(rank)?.node.setAttribute("tabindex", "0");
		this.active = rank;
	}

	key(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		if (event.key === "Enter" || event.key === " ") this.view.focus(this.active);
		else if (event.key in MOVES) this.go(MOVES[event.key]);
		else return;
		event.preventDefault();
	}

	go(move) {
		const nodes = this.order.map((rank) => this.boxes.get(rank).node).filter(({ hidden }) => !hidden);
		const here = this.boxes.get(this.active).node;
		const at = nodes.indexOf(here);
		const columns = getComputedStyle(here.parentNode).gridTemplateColumns.split(" ").length;
		const to = { up: at - columns, down: at + columns, home: 0, end: nodes.length - 1 }[move] ?? at + move;
		nodes[to]?.focus();
	}

	pick(rank) {
		if (rank === undefined || String(getSelection())) return;
		this.view.focus(rank === this.view.rank ? undefined : rank);
	}

	/** The details of the chosen rank; of tiles else of the one under the pointer. */
	explain() {
		const keyed = this.grid.contains(document.activeElement) ? this.active : undefined;
		const others = this.size === "rows" ? [] : [this.hovered, keyed, this.order[0]];
		const rank = [this.view.rank, ...others].find((r) => this.boxes.has(r));
		const card = this.view.store.cards.get(rank);
		show(this.detail.node, card);
		if (card) this.detail.set(card, this.view.store);
	}
}

// --- figures ---

const [LEFT, RIGHT, TOP, BOTTOM, HIGH] = [58, 22, 6, 18, 112]; // of a chart, in pixels

/** About `wanted` round numbers within [low, high], at least three, and their distance. */
function ticks(low, high, wanted) {
	const rough = (high - low) / wanted;
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
	const values = [];
	for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && values.length < 20; k++) values.push(k * step || 0);
	return values.length < 3 && wanted < 20 ? ticks(low, high, 2 * wanted) : [values, step];
}

/** With as many digits as tell it from the next. */
function tickText(value, step) {
	const power = (x) => Math.floor(Math.log10(Math.abs(x)) + 1e-9);
	const last = power(step);
	if (Math.abs(value) < 1e6 && last > -5) return last < 0 ? value.toFixed(-last) : count(value);
	return value ? value.toExponential(Math.max(0, power(value) - last)).replace("e+", "e") : "0";
}

/** The least and the greatest number, without NaN. */
function reach(lists) {
	let [low, high] = [Infinity, -Infinity];
	for (const list of lists) {
		for (const value of list) {
			if (value < low) low = value;
			if (value > high) high = value;
		}
	}
	return [low, high];
}

/** The index of the point nearest x. */
const nearest = (xs, x) =>
	xs.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0);

/** A running mean, debiased as in TensorBoard. */
function smoothed(values, weight) {
	let [sum, scale] = [0, 0];
	return values.map((value) => {
		if (isNaN(value)) return value;
		sum = weight * sum + (1 - weight) * value;
		scale = weight * scale + (1 - weight);
		return sum / scale;
	});
}

/** Mean, lowest and highest, up to where ranks that run, and are not far behind, have reported. */
function bundle(lines, [x0, x1], places, runs) {
	const all = [...lines].filter(([, { x }]) => x.length).map(([rank, line]) => ({ ...line, i: 0, end: runs(rank) ? line.x.at(-1) : x1 }));
	const last = Math.min(x1, ...all.map(({ end }) => end).filter((end) => end > x0 + 0.8 * (x1 - x0)));
	const [mean, low, high] = [[], [], []].map((y) => ({ x: [], y }));
	for (let k = 0; k <= places; k++) {
		const x = x0 + (k / places) * (last - x0);
		const values = [];
		for (const line of all) {
			while (line.i < line.x.length - 1 && line.x[line.i + 1] <= x) line.i++;
			const { i } = line;
			if (x < line.x[0] - 1e-9 || x > line.x.at(-1) + (last - x0) / places) continue;
			const part = i < line.x.length - 1 ? (x - line.x[i]) / (line.x[i + 1] - line.x[i]) : 0;
			const y = part > 0 ? line.y[i] + part * (line.y[i + 1] - line.y[i]) : line.y[i];
			if (!isNaN(y)) values.push(y);
		}
		if (!values.length) continue;
		const ys = [values.reduce((sum, y) => sum + y, 0) / values.length, Math.min(...values), Math.max(...values)];
		[mean, low, high].forEach((line, j) => {
			line.x.push(x);
			line.y.push(ys[j]);
		});
	}
	return { mean, low, high };
}

/** A path through the points, with only the extremes of each pixel column. */
function trace({ x, y }, sx, sy) {
	let path = "";
	let pen = "M";
	let [column, low, high] = [null, 0, 0];
	for (let i = 0; i < x.length; i++) {
		if (isNaN(y[i])) {
			[pen, column] = ["M", null];
			continue;
		}
		const [px, py] = [Math.round(sx(x[i]) * 2) / 2, Math.round(sy(y[i]) * 10) / 10];
		if (px !== column) [column, low, high] = [px, py, py];
		else if (py >= low && py <= high) continue;
		else [low, high] = [Math.min(low, py), Math.max(high, py)];
		path += `${pen}${px} ${py}${pen === "M" ? "h0" : ""}`;
		pen = "L";
	}
	return path;
}

class Chart {
	axes = svg("g.axes");
	plot = svg("g.lines", { fill: "none" });
	ends = svg("g.ends");
	cross = svg("line.cross", { y1: TOP, y2: HIGH - BOTTOM });
	at = span("quiet.at");
	legend = div("legend");
	paths = new Map();

	constructor(view, name) {
		this.view = view;
		this.name = plain(name);
		const point = (x) => {
			this.pointer = x;
			view.redraw("figures");
		};
		const about = {
			...{ height: HIGH, tabindex: 0, role: "img" },
			pointermove: (event) => point(event.offsetX),
			pointerleave: () => point(),
			blur: () => point(),
			keydown: (event) => {
				const move = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
				if (!move) return;
				event.preventDefault();
				const end = this.wide - RIGHT;
				point(Math.min(end, Math.max(LEFT, (this.pointer ?? end) + move)));
			},
		};
		this.svg = svg("svg.plot", about, this.axes, this.plot, this.ends, this.cross);
		const caption = h("figcaption.caption", {}, h("strong", {}, this.name), this.at);
		this.node = h("figure.figure", { "data-figure": name }, caption, this.svg, this.legend);
	}

	draw(lines) {
		const wide = this.svg.clientWidth;
		this.wide = wide;
		if (!wide) return;
		const { log, time, smooth } = this.view.charting;
		const own = new Map([...lines].map(([rank, { x, y, t }]) => {
			const ys = y.map(log ? Math.log10 : Number).map((y) => (isFinite(y) ? y : NaN));
			return [rank, { x: time ? t : x, y: smooth ? smoothed(ys, smooth) : ys }];
		}));
		let [x0, x1] = reach([...own.values()].map(({ x }) => x));
		let [y0, y1] = reach([...own.values()].map(({ y }) => y));
		this.blank = y0 > y1;
		if (this.blank) [y0, y1] = [0, 1];
		if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
		const margin = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
		[y0, y1] = [y0 - margin, y1 + margin];
		const across = (wide - LEFT - RIGHT) / (x1 - x0);
		const sx = (x) => LEFT + (x - x0) * across;
		const sy = (y) => HIGH - BOTTOM - ((y - y0) / (y1 - y0)) * (HIGH - TOP - BOTTOM);
		mark(this.svg, "viewBox", `0 0 ${wide} ${HIGH}`);
		this.drawAxes([x0, x1, y0, y1], sx, sy);
		this.drawLines(own, sx, sy, [x0, x1]);
		const pointed = this.pointer === undefined ? null : x0 + (this.pointer - LEFT) / across;
		this.read(lines, own, pointed, sx);
	}

	drawAxes(range, sx, sy) {
		const [x0, x1, y0, y1] = range;
		fill(this.axes, `${range} ${this.wide} ${this.view.charting.log} ${this.blank}`, () => {
			const [ys, tall] = this.blank ? [[]] : ticks(y0, y1, 4);
			const [xs, broad] = ticks(x0, x1, Math.max(2, Math.floor(this.wide / 90)));
			const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
			const below = xs.map((value) => text(sx(value), HIGH - 4, "middle", tickText(value, broad)));
			const beside = ys.flatMap((value) => {
				const words = this.view.charting.log ? figure(10 ** value) : tickText(value, tall);
				const y = Math.round(sy(value)) + 0.5;
				const line = svg("line", { x1: LEFT, x2: this.wide - RIGHT, y1: y, y2: y });
				return [line, text(LEFT - 6, y + 4, "end", words)];
			});
			return [...beside, ...below];
		});
	}

	/** Few ranks: a colored line each. Many: their mean in a band. */
	drawLines(lines, sx, sy, ends) {
		const focused = this.view.rank;
		const many = this.isMany(lines);
		const named = new Map([...lines].filter(([rank]) => !many || rank === focused));
		const wanted = new Map();
		if (many) {
			const { mean, low, high } = bundle(lines, ends, Math.max(60, Math.min(300, Math.floor(this.wide / 2))), (rank) => !OVER.has(this.view.store.cards.get(rank)?.phase));
			const back = { x: low.x.toReversed(), y: low.y.toReversed() };
			wanted.set("band", `${trace(high, sx, sy)}${trace(back, sx, sy).replace("M", "L")}Z`);
			wanted.set("mean", trace(mean, sx, sy));
		}
		for (const [rank, line] of named) wanted.set(rank, trace(line, sx, sy));
		const one = (rank) => tint(svg("path.trace", { "data-rank": rank }), rank);
		const paths = [...wanted].map(([key, d]) => {
			const path = held(this.paths, key, () => (typeof key === "string" ? svg(`path.${key}`) : one(key)));
			mark(path, "d", d.startsWith("M") ? d : "");
			path.classList.toggle("xn-lit", key === focused);
			path.classList.toggle("xn-pale", named.has(focused) && key !== focused);
			return path;
		});
		fill(this.plot, String([...wanted.keys()]), () => paths);
		this.drawEnds(named, sx, sy);
	}

	isMany(lines) {
		return lines.size > (this.view.charting.each ? 64 : 4);
	}

	/** The rank's number at the end of its line: color alone does not tell lines apart. */
	drawEnds(lines, sx, sy) {
		const ends = [];
		for (const [rank, { x, y }] of lines) {
			const i = y.findLastIndex((value) => !isNaN(value));
			if (i >= 0) ends.push({ rank, x: sx(x[i]), y: sy(y[i]) });
		}
		ends.sort((a, b) => a.y - b.y);
		let below = TOP - 6;
		const texts = ends.map(({ rank, x, y }, i) => {
			below = Math.min(Math.max(y, below + 10), HIGH - BOTTOM + 14 - 10 * (ends.length - i));
			return tint(svg("text", { x: Math.round(x + 5), y: Math.round(below + 3.5) }, rank), rank);
		});
		this.ends.replaceChildren(...texts);
	}

	/** The legend: the values under the pointer, or the last ones, as they were reported. */
	read(lines, own, x, sx) {
		const values = new Map();
		const { time, smooth } = this.view.charting;
		let at = null;
		for (const [rank, { y }] of [...lines].sort(([a], [b]) => a - b)) {
			const xs = own.get(rank).x;
			const i = x === null ? xs.length - 1 : nearest(xs, x);
			values.set(rank, y[i]);
			if (x !== null && (at === null || Math.abs(xs[i] - x) < Math.abs(at - x))) at = xs[i];
		}
		put(this.at, joined(smooth ? "smoothed" : "", at === null ? "last" : time ? `at ${duration(at)}` : `step ${figure(at)}`));
		mark(this.cross, "visibility", at === null ? "hidden" : null);
		if (at !== null) for (const name of ["x1", "x2"]) mark(this.cross, name, sx(at));
		const rows = this.isMany(lines) || values.size > 8 ? this.summary(values) : [...values].map(([rank, value]) => [rank, `rank ${rank}`, figure(value)]);
		mark(this.svg, "aria-label", `${this.name}: ${rows.map(([, name, value]) => `${name} ${value}`).join(", ")}`);
		fill(this.legend, String(rows), () => rows.map(([key, name, value]) => {
			const label = typeof key === "number" ? tint(span("key.one", name), key) : span("key", name);
			return h("span", { "data-legend": key }, label, h("b", {}, value));
		}));
	}

	summary(values) {
		const sorted = [...values].filter(([, value]) => isFinite(value)).sort(([, a], [, b]) => a - b);
		const odd = [...values.keys()].filter((rank) => !isFinite(values.get(rank)));
		const bad = odd.length ? [["odd", "not finite", `rank ${spans(odd)}`]] : [];
		if (!sorted.length) return bad;
		const mean = sorted.reduce((sum, [, value]) => sum + value, 0) / sorted.length;
		const ends = [["min", sorted[0]], ["max", sorted.at(-1)]].map(([key, [rank, value]]) => [key, key, `${figure(value)} (rank ${rank})`]);
		const { rank } = this.view;
		const own = values.has(rank) ? [[rank, `rank ${rank}`, figure(values.get(rank))]] : [];
		return [...own, ["mean", "mean", figure(mean)], ...ends, ...bad];
	}
}

class Figures {
	charts = new Map();
	grid = div("figures-grid");
	queue = []; // charts to draw, one in each frame

	constructor(view) {
		this.view = view;
		const { charting } = view;
		const redraw = () => view.redraw("figures");
		const choice = (text, key, title) => {
			const flip = ({ currentTarget }) => {
				charting[key] = !charting[key];
				mark(currentTarget, "aria-pressed", charting[key]);
				redraw();
			};
			return button(text, flip, { "aria-pressed": false, title }, "choice");
		};
		const smooth = h("select.select", { label: "Smoothing", change: () => ((charting.smooth = Number(smooth.value)), redraw()) },
			...[[0, "not smoothed"], [0.6, "smoothed"], [0.9, "very smooth"]].map(option));
		const choices = h("span.choices", { role: "group", label: "Charts" },
			choice("log", "log", "Logarithmic axis"),
			choice("time", "time", "Seconds instead of steps"),
			choice("each rank", "each", "A line for each rank"),
			choice("memory", "memory", "Memory of each process"));
		const head = div("bar-head", span("space"), choices, smooth);
		this.node = folding(section("figures", "Figures", head, this.grid), "figures", "Figures", head);
		this.resized = new ResizeObserver(redraw);
		this.resized.observe(this.grid);
	}

	get every() {
		return this.view.store.cards.size > 32 ? 500 : 150;
	}

	draw() {
		const { figures, memory } = this.view.store;
		const all = new Map([...figures].map(([name, lines]) => [`figure ${name}`, [name, lines]]));
		if (this.view.charting.memory) all.set("memory", ["memory, MiB", memory]);
		show(this.node, all.size || memory.size);
		mark(this.node, "data-empty", !figures.size);
		const keys = [...all.keys()];
		const chart = (key) => held(this.charts, key, () => new Chart(this.view, all.get(key)[0]));
		fill(this.grid, JSON.stringify(keys), () => keys.map((key) => chart(key).node));
		if (!this.queue.length) this.queue = keys;
		const key = this.queue.shift();
		if (all.has(key)) chart(key).draw(all.get(key)[1]);
		return this.queue.length > 0;
	}
}

// --- output ---

const file = (rank, stream) => (rank === null ? `job.${stream}` : `rank-${rank}.${stream}`);

/** The folder that JupyterLab shows files of, and how it names it; null elsewhere. */
function served(path, home) {
	let root;
	try {
		root = JSON.parse(document.getElementById("jupyter-config-data").textContent).serverRoot;
	} catch {
		return null;
	}
	const folder = raw(root).replace(/^~/, home).replace(/\/?$/, "/");
	const below = path.startsWith(folder) ? path.slice(folder.length) : "";
	return below && !below.split("/").some((part) => part.startsWith(".")) ? below : null;
}

/** Rows of output. A line joins an equal one of another rank where it stays behind those that came
 * before it. */
class Folds {
	rows = new Map(); // by stream and text: the newest row
	last = new Map(); // by rank and stream: the number of the row of its last line
	next = 0;

	/** The row that a line joins; null if it needs one of its own, which `add` tells. */
	join({ rank, stream, gap, text }) {
		const row = gap ? undefined : this.rows.get(`${stream} ${text}`);
		const near = row && row.at > this.next - FOLDS && row.at > (this.last.get(`${rank} ${stream}`) ?? -1);
		if (!near) return null;
		this.last.set(`${rank} ${stream}`, row.at);
		row.ranks.add(rank);
		return row;
	}

	add({ rank, stream, gap, text }, node) {
		const row = { at: this.next++, ranks: new Set([rank]), node };
		this.last.set(`${rank} ${stream}`, row.at);
		if (!gap) this.rows.set(`${stream} ${text}`, row);
		if (this.rows.size > 2 * FOLDS) for (const [key, { at }] of this.rows) if (at <= this.next - FOLDS) this.rows.delete(key);
	}
}

class Output {
	every = 0;
	stream = "both";
	needle = "";

	constructor(view) {
		this.view = view;
		this.lines = view.store.lines;
		const choose = () => this.choose();
		this.whose = h("select.select", { label: "Ranks shown", change: choose });
		const streams = [["both", "stdout + stderr"], ["out", "stdout"], ["err", "stderr"]];
		this.streams = h("select.select", { label: "Stream", change: choose }, ...streams.map(option));
		this.filter = search("Filter output", choose);
		this.matches = status("quiet.matches");
		const follow = () => (this.rows ? this.refresh() : this.hold(false));
		this.follow = button("Follow", follow);
		this.copy = button("Copy", () => this.copyLines(), { label: "Copy output" });
		this.earlier = link("Earlier output", () => this.goBack());
		this.words = status("quiet");
		this.body = div("rows");
		const about = {
			...{ role: "log", label: "Output", "aria-live": "off", tabindex: 0 },
			scroll: () => this.scrolled(),
			wheel: ({ deltaY }) => {
				if (deltaY < 0 && !this.rows && this.log.scrollTop > 0) this.hold(true);
			},
			selectstart: () => {
				if (!this.rows) this.hold(true); // or the selected lines would scroll away
			},
			keydown: ({ key }) => {
				if (key === "End" && this.rows) this.refresh();
			},
		};
		this.log = h("div.log", about, div("top", this.earlier, this.words), this.body);
		this.jump = button("", () => this.refresh(), {}, "button.jump");
		this.path = h("code.path");
		const copyPath = ({ currentTarget }) => this.copied(currentTarget, this.path.textContent);
		// JupyterLab itself follows links of this kind.
		this.open = h("button.button", { type: "button", "data-commandlinker-command": "docmanager:open" }, "Open log");
		this.file = div("file", this.path, link("Copy path", copyPath));
		const head = div("bar-head", this.whose, this.streams, this.filter, this.matches, this.file, this.follow, this.copy, this.open);
		const screen = div("screen", this.log, this.jump);
		this.node = folding(section("output", "Output", head, screen), "output", "Output", head);
		this.refresh();
	}

	// Output belongs to a process, not to a device.
	get rank() {
		return this.view.store.about.unit === "device" ? undefined : this.view.rank;
	}

	matching = ({ stream, gap, text }) => {
		if (this.stream !== "both" && stream !== this.stream) return false;
		return !this.needle || (!gap && plain(text).toLowerCase().includes(this.needle));
	};

	choose() {
		const { value } = this.whose;
		this.stream = this.streams.value;
		this.needle = this.filter.value.trim().toLowerCase();
		this.view.focus(value === "all" ? undefined : value === "job" ? null : Number(value));
	}

	/** Shows the newest lines, and follows them. */
	refresh() {
		this.rows = null; // the lines in the page while it does not follow
		this.drawn = -1; // the newest line in the page
		this.folds = new Folds();
		this.clear = true;
		this.counted = -Infinity;
		this.before = {}; // by stream: where the earliest fetched line starts
		this.busy = false;
		this.asking = null;
		this.first = false; // whether the page shows the first line
		put(this.words, "");
		this.view.changed("output");
	}

	draw(now) {
		const { rank } = this;
		const { record } = this.view.store.about;
		const one = rank !== undefined;
		const held = Boolean(this.rows);
		this.options();
		if (this.clear) {
			this.body.replaceChildren();
			mark(this.log, "data-full", null);
		}
		this.clear = false;
		if (!held) this.append();
		// It grows with its lines, up to a height from which new ones no longer move the page.
		if (!this.log.dataset.full && this.body.childNodes.length && this.log.scrollHeight > this.log.clientHeight) mark(this.log, "data-full", true);
		this.count(now);
		mark(this.log, "data-follow", !held);
		mark(this.log, "data-scope", one ? "one" : "all");
		mark(this.follow, "aria-pressed", !held);
		show(this.jump, held);
		const fresh = held ? this.lines.total(rank) - this.heldAt : 0;
		put(this.jump, joined("Jump to the end", fresh > 0 && plural(fresh, "new line")));
		show(this.earlier, one && !this.first);
		for (const part of this.file.children) show(part, record);
		const log = (rank) => `${record}/${file(rank, this.stream === "err" ? "err" : "out")}`;
		put(this.path, one ? log(rank) : record);
		const path = served(log(one ? rank : 0), this.view.store.about.home);
		show(this.open, path);
		mark(this.open, "data-commandlinker-args", path && JSON.stringify({ path }));
		// Last, as it makes the browser lay out the page.
		if (!held) this.log.scrollTop = 1e9;
	}

	options() {
		const { cards } = this.view.store;
		const job = this.lines.byRank.has(null);
		fill(this.whose, `${job} ${cards.size}`, () => {
			const all = [...cards.keys()].sort((a, b) => a - b).map((rank) => [rank, `Rank ${rank}`]);
			return [["all", "All ranks"], ...(job ? [["job", "The cell itself"]] : []), ...all].map(option);
		});
		const value = this.rank === undefined ? "all" : String(this.rank ?? "job");
		if (this.whose.value !== value) this.whose.value = value;
	}

	append() {
		const fresh = this.lines.since(this.rank, this.drawn, this.matching, ROWS_LIVE);
		this.drawn = this.lines.next - 1;
		if (fresh.length === ROWS_LIVE) {
			this.body.replaceChildren();
			this.folds = new Folds();
		}
		this.body.append(...this.rowsOf(fresh, this.folds));
		while (this.body.childNodes.length > ROWS_LIVE) this.body.firstChild.remove();
	}

	/** New rows for lines; where all ranks are shown equal ones share a row. */
	rowsOf(lines, folds) {
		if (this.rank !== undefined) return lines.map((line) => this.row(line));
		const nodes = [];
		for (const line of lines) {
			const row = folds.join(line);
			if (row?.node.isConnected || nodes.includes(row?.node)) {
				put(row.node.firstChild, spans(row.ranks));
				mark(row.node, "data-rank", [...row.ranks].join(" "));
				row.node.firstChild.classList.add("xn-several");
			} else {
				const node = this.row(line);
				folds.add(line, node);
				nodes.push(node);
			}
		}
		return nodes;
	}

	row({ id, rank, stream, gap, text }) {
		const tag = tint(span("tag", rank ?? "cell"), rank);
		const words = span("text");
		if (gap) words.append(`… ${plural(gap, "line")} not shown, in ${file(rank, stream)}`);
		else ansi(words, text, this.needle);
		const err = stream === "err" ? h("span.err", { title: "stderr" }, "err") : "";
		const node = h(gap ? "div.row.gap" : "div.row", { "data-rank": rank ?? "job", "data-stream": stream }, tag, err, words);
		node.xnId = id; // of its first line
		return node;
	}

	count(now) {
		show(this.matches, this.needle);
		if (!this.needle || now - this.counted < 400) return;
		this.counted = now;
		const hits = this.lines.since(this.rank, -1, this.matching, Infinity);
		put(this.matches, plural(hits.length, "hit"));
	}

	scrolled() {
		const { scrollTop, scrollHeight, clientHeight } = this.log;
		const below = scrollHeight - scrollTop - clientHeight;
		const up = scrollTop < this.scrollTop;
		this.scrollTop = scrollTop;
		if (!this.rows && up && below > 24) this.hold(true);
		else if (this.rows && up && scrollTop < 40 && this.rank !== undefined) this.goBack();
		else if (this.rows && !up && below < 2 && this.auto) this.refresh();
	}

	/** Stops following; with `auto` until the end is scrolled to. */
	hold(auto) {
		const drawn = (line) => line.id <= this.drawn && this.matching(line);
		this.auto = auto;
		this.heldAt = this.lines.total(this.rank);
		this.rows = [];
		const rows = this.lines.since(this.rank, -1, drawn, ROWS);
		const first = this.body.firstChild?.xnId ?? Infinity;
		this.prepend(rows.filter(({ id }) => id < first));
		this.rows = rows;
	}

	/** Adds lines at the top; those in sight stay where they are. */
	prepend(lines) {
		const { log, body } = this;
		const [top, high] = [log.scrollTop, log.scrollHeight];
		body.prepend(...this.rowsOf(lines, new Folds()));
		log.scrollTop = top + log.scrollHeight - high;
		this.scrollTop = log.scrollTop;
		this.rows.unshift(...lines);
		this.rows.length = Math.min(this.rows.length, ROWS);
		if (body.childNodes.length > ROWS) this.auto = false; // the last row is no longer the last line
		while (body.childNodes.length > ROWS) body.lastChild.remove();
		this.view.changed("output");
	}

	/** Shows earlier lines: those held, then those of the record. */
	goBack() {
		if (this.busy || this.first || this.rank === undefined) return;
		if (!this.rows) this.hold(false);
		const first = this.rows.length ? this.rows[0].id : Infinity;
		const older = this.lines.since(this.rank, -1, (line) => line.id < first && this.matching(line), ROWS / 2);
		if (older.length && !Object.keys(this.before).length) return this.prepend(older);
		for (const stream of this.stream === "both" ? ["out", "err"] : [this.stream]) {
			const isOf = (line) => line.stream === stream;
			const oldest = this.rows.find(isOf) ?? this.lines.byRank.get(this.rank)?.find(isOf);
			const before = this.before[stream] ?? oldest?.at ?? Number.MAX_SAFE_INTEGER;
			if (before > 0) return this.fetch(stream, before);
		}
		this.first = true;
		put(this.words, "This is the start of the output.");
		this.view.changed("output");
	}

	fetch(stream, before) {
		const { rank } = this;
		const mine = {};
		this.asking = mine;
		this.busy = true;
		put(this.words, "Fetching…");
		const silent = () => {
			if (mine !== this.asking) return;
			this.busy = false;
			put(this.words, "This kernel cannot answer while the cell runs. The file has all output.");
		};
		const answered = (lines, start, first) => {
			if (mine !== this.asking) return; // too late: the view has moved on
			this.busy = false;
			this.before[stream] = first ? 0 : start;
			const hits = lines.filter(this.matching);
			put(this.words, this.needle ? `${plural(hits.length, "hit")} in ${plural(lines.length, "earlier line")}` : "");
			this.prepend(hits);
			if (first && !lines.length) this.goBack(); // to the other stream
		};
		this.view.store.ask({ type: "earlier", rank, stream, before, count: ROWS / 4 }, { silent, answered });
	}

	copyLines() {
		const rows = this.rows ?? this.lines.since(this.rank, -1, this.matching, ROWS);
		const lines = rows.filter(({ gap }) => !gap);
		const tag = (rank) => (this.rank === undefined ? `[${rank ?? "cell"}] ` : "");
		const text = lines.map((line) => tag(line.rank) + plain(line.text)).join("\n");
		this.copied(this.copy, text, ` ${plural(lines.length, "line")}`);
	}

	copied(node, text, what = "") {
		copy(text);
		node.xnLabel ??= node.textContent;
		put(node, `Copied${what}`);
		setTimeout(() => put(node, node.xnLabel), 1500);
	}
}

// --- a view ---

class View {
	rank = undefined; // whose output is shown: undefined for all, null for the cell itself
	inSight = true;
	drawn = new Map();
	frame = 0;

	constructor(store, el) {
		this.store = store;
		this.dirty = new Set();
		this.charting = { log: false, time: false, each: false, memory: false, smooth: 0 };
		this.root = h("div.panel", {
			role: "region",
			label: `Run ${store.run}`,
			"data-lm-suppress-shortcuts": "true", // keys in here are not the notebook's
			keydown: (event) => this.key(event),
		});
		this.parts = {
			head: new Head(this),
			troubles: new Troubles(this),
			stacks: new Stacks(this),
			ranks: new Ranks(this),
			figures: new Figures(this),
			output: new Output(this),
		};
		// The snapshot below it (view.py) is for pages on which no panel is alive.
		const covers = h("style", {}, `.xn-saved-${CSS.escape(store.run)} { display: none }`);
		this.root.append(covers, ...Object.values(this.parts).map((part) => part.node));
		this.root.xnView = this; // for tests
		this.wake = () => this.schedule();
		this.watch = new IntersectionObserver((entries) => {
			this.inSight = entries.at(-1).isIntersecting;
			this.wake();
		});
		this.watch.observe(this.root);
		document.addEventListener("visibilitychange", this.wake);
		this.clock = setInterval(() => this.tick(), 1000);
		store.views.add(this);
		el.append(this.root);
		this.shade();
		this.changed(...Object.keys(this.parts));
	}

	close() {
		this.store.views.delete(this);
		this.watch.disconnect();
		this.parts.figures.resized.disconnect();
		document.removeEventListener("visibilitychange", this.wake);
		clearInterval(this.clock);
		cancelAnimationFrame(this.frame);
		this.root.remove();
	}

	/** Draws these parts at their next turn. */
	changed(...parts) {
		for (const part of parts) this.dirty.add(part);
		this.schedule();
	}

	/** Draws these parts in the next frame. */
	redraw(...parts) {
		for (const part of parts) this.drawn.delete(part);
		this.changed(...parts);
	}

	get seen() {
		return this.inSight && !document.hidden;
	}

	schedule() {
		if (!this.frame && this.dirty.size && this.seen) this.frame = requestAnimationFrame((now) => this.flush(now));
	}

	flush(now) {
		this.frame = 0;
		if (!this.seen) return;
		for (const name in this.parts) {
			const part = this.parts[name];
			if (!this.dirty.has(name) || now - (this.drawn.get(name) ?? -Infinity) < part.every) continue;
			this.dirty.delete(name);
			if (part.draw(now)) this.redraw(name);
			else this.drawn.set(name, now);
		}
		this.schedule();
	}

	tick() {
		if (!this.seen) return;
		this.shade();
		if (this.store.over) return;
		this.changed("head");
		this.parts.ranks.tick();
	}

	/** Sees whether the background is dark: front ends mark themes in many ways. */
	shade() {
		let light = 255;
		for (let node = this.root.parentElement; node; node = node.parentElement) {
			const [red, green, blue, alpha = 1] = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
			if (blue === undefined || alpha < 0.5) continue;
			light = 0.299 * red + 0.587 * green + 0.114 * blue;
			break;
		}
		mark(this.root, "data-dark", light < 128);
	}

	key(event) {
		event.stopPropagation();
		if (event.key !== "Escape") return;
		const { filter } = this.parts.output;
		if (event.target === filter && filter.value) {
			filter.value = "";
			this.parts.output.choose();
		} else if (this.rank !== undefined) this.focus(undefined);
		else return;
		event.preventDefault();
	}

	/** Shows the output of one rank, or of all. */
	focus(rank, reveal = false) {
		if (rank !== this.rank) {
			this.rank = rank;
			this.store.focus();
		}
		this.parts.output.refresh();
		this.redraw("ranks", "figures");
		if (reveal) this.parts.output.node.scrollIntoView({ block: "nearest" });
	}
}

// anywidget calls this once per model, so that its views share a store.
export default () => {
	let store;
	return {
		initialize({ model }) {
			store = new Store(model);
			return () => store.close();
		},
		render({ model, el }) {
			store ??= new Store(model);
			const view = new View(store, el);
			return () => view.close();
		},
	};
};
