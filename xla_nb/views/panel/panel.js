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
const readCard = reader({
	phase: (x) => (PHASES.includes(x) ? x : "starting"),
	...each(string, "device host from place detail line"),
	...each(number, "since used"),
	rank: amount,
	facts: (x) => objects(x).map(readFact),
	bars: (x) => objects(x).slice(0, 3).map(readBar),
});
const readTrouble = reader({ ranks, open: Boolean, told: Boolean, ...each(string, "who phase title place"), text: raw, others: strings });
const readGroup = reader({ ranks, ...each(string, "who place note"), stack: raw });
const readHang = reader({ verdict: string, groups: (x) => objects(x).map(readGroup) });
const readAbout = reader({
	...each(string, "cell headline host stopping record"),
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
const PHASES = "early failed killed waiting compiling starting running stopped finished".split(" ");
const OVER = new Set(["finished", "early", "failed", "killed", "stopped"]);

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

function figure(value) {
	if (!Number.isFinite(value)) return "–";
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
const title = (text) => h("h4.h", {}, text);
const status = (names) => h(`div.${names}`, { role: "status" });
const glyph = () => h("i.glyph", { "aria-hidden": true });
const section = (name, label, ...children) => h(`section.${name}`, { label }, ...children);
const button = (text, click, attributes, name = "button") =>
	h(`button.${name}`, { type: "button", click, ...attributes }, text);
const search = (label, input) => h("input.filter", { type: "search", label, placeholder: label, spellcheck: "false", input });
const link = (text, click) => button(text, click, {}, "link");

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

// The first eight hues are far apart; the rest follow the golden angle.
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

/** A progress bar with its label, counts, rate and time to go. */
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
	return { node, set };
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

	/** The kernel was restarted: nothing more comes from the run, and Stop would hit another cell. */
	freeze() {
		if (this.over) return;
		this.frozen = this.now;
		const headline = `Kernel restarted; last update ${this.updated.toTimeString().slice(0, 8)}`;
		this.describe({ ...this.about, ended: this.now, headline });
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
			message = { bar: null, hang: null, cards: [], troubles: [], figures: [], ...message };
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
		for (const card of cards) if (isRank(card.rank)) this.cards.set(card.rank, readCard(card));
		this.lines.ranks = Math.max(this.lines.ranks, this.cards.size);
		this.changed("head", "ranks");
	}

	plot(figures, all) {
		if (all) this.figures = new Map();
		for (const { name, rank, replace, points } of figures) {
			if (typeof name !== "string" || !isRank(rank) || !Array.isArray(points)) continue;
			this.trace(held(this.figures, name, () => new Map()), rank, replace, points);
		}
		this.changed("figures");
	}

	/** Adds points to a rank's line of a figure. */
	trace(lines, rank, replace, points) {
		if (replace) lines.delete(rank);
		const { x, y } = held(lines, rank, () => ({ x: [], y: [] }));
		for (const point of points.map(list)) {
			if (number(point[0]) === null) continue;
			x.push(point[0]);
			y.push(number(point[1]) ?? NaN);
		}
		for (const values of [x, y]) values.splice(0, values.length - POINTS);
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

	/** Sends a request; calls `received` when the kernel has it, `silent` if it does not say so in time. */
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

	/** Asks the kernel to stop, or to give ranks less time for it at another click; interrupts it
	 * if it is silent. */
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
		const who = (ranks) => `ranks ${ranks.slice(0, 12).join(", ")}${ranks.length > 12 ? " …" : ""}`;
		return [...groups.values()].map((group) => ({ ...group, who: who(group.ranks) }));
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
		this.cell = h("strong.cell");
		this.headline = span("headline");
		this.title = div("title", glyph(), this.cell, this.headline);
		this.elapsed = span("elapsed");
		const toggle = () => (store.stacks.state === "closed" ? store.askStacks() : store.setStacks("closed"));
		this.stacks = button("Stacks", toggle, { "aria-expanded": false });
		this.stop = button("Stop", () => store.halt(), { "data-action": "stop" });
		this.counts = h("ul.counts", { label: "Ranks by phase" });
		this.simulated = span("simulated", "simulated TPU host");
		this.host = span("quiet");
		this.bar = meter("runbar");
		this.say = status("say");
		this.hang = status("hang");
		this.notices = h("ul.notices", { label: "Notices" });
		this.live = h("div.live", { "aria-live": "polite" });
		const actions = div("actions", this.elapsed, this.stacks, this.stop);
		const sub = div("sub", this.counts, this.simulated, span("space"), this.host);
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
		const { about, over, stacks } = store;
		const { state } = this;
		mark(root, "data-state", state);
		mark(this.title, "data-phase", { ok: "finished", stopping: "waiting" }[state] ?? state);
		put(this.cell, about.cell || store.run);
		put(this.headline, about.headline);
		const { elapsed } = store;
		put(this.elapsed, over && elapsed < 60 ? `${elapsed.toFixed(1)} s` : duration(elapsed));
		put(this.stop, state === "stopping" ? "Stopping…" : "Stop");
		this.stop.disabled = over;
		this.stacks.disabled = over && stacks.state === "closed";
		mark(this.stacks, "aria-expanded", stacks.state !== "closed");
		tally(this.counts, [...store.cards.values()]);
		show(this.simulated, about.simulated);
		put(this.host, about.host);
		mark(this.host, "data-phase", about.lost.size ? "killed" : null);
		this.bar.set(store.bar);
		const say = store.say || about.stopping;
		show(this.say, say);
		put(this.say, say);
		const { hang } = store;
		show(this.hang, hang);
		const where = () => h("details", {}, h("summary", {}, "Where each rank was"), ...hang.groups.map(group));
		fill(this.hang, JSON.stringify(hang), () => (hang ? [hang.verdict, where()] : []));
		fill(this.notices, about.notices.join("\n"), () => about.notices.map((text) => h("li.notice", {}, text)));
		// A screen reader reads a new headline at most every five seconds.
		const due = over || now - (this.spoken ?? -5000) >= 5000;
		if (!due || !about.headline || this.live.xnText === about.headline) return;
		this.spoken = now;
		put(this.live, about.headline);
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
		const head = div("trouble-head", glyph(), h("strong", {}, who), told ? "" : span("own", place), links);
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
		const head = div("bar-head", title("Where each rank is"), again, close);
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
		fill(this.groups, groups, () => groups.map(group));
	}
}

function group({ ranks, who, place, stack, note }) {
	const many = ranks.length > 2 ? span("quiet", `(${ranks.length})`) : "";
	const where = [span("own", place || "unknown line"), span("quiet", note)];
	const head = div("trouble-head", h("strong", {}, who), many, ...where);
	return h("article.group", { "data-ranks": ranks }, head, stack ? block(stack) : "");
}

// --- ranks ---

/** A rank's card. The style sheet hides most of it in the compact size. */
class Card {
	constructor() {
		for (const name of ["number", "phase", "since", "device", "place", "what", "from"]) this[name] = span(name);
		this.last = div("last");
		this.bars = [meter(), meter(), meter()];
		this.used = h("i");
		this.gauge = h("span.gauge", { "aria-hidden": true }, this.used);
		this.facts = h("dl.facts");
		this.values = new Map();
		this.children = [
			div("card-head", this.number, span("state", glyph(), this.phase), this.since, this.device),
			div("where", this.place, this.what),
			div("bars", ...this.bars.map((bar) => bar.node)),
			this.last,
			this.facts,
			this.from,
		];
	}

	set(card, store) {
		put(this.number, String(card.rank));
		tint(this.number, card.rank);
		put(this.phase, card.phase);
		put(this.device, card.device);
		put(this.place, card.place);
		put(this.what, card.detail);
		put(this.last, card.line);
		put(this.from, card.from);
		this.bars.forEach((bar, i) => bar.set(card.bars[i]));
		this.list(card);
		this.time(card, store);
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

	time({ phase, since }, { now }) {
		put(this.since, since === null || OVER.has(phase) ? "" : duration(now - since));
	}
}

/** A tile of the dense grid: rank, phase and progress. */
class Tile {
	number = span("number");
	children = [glyph(), this.number];

	set(card, store, node) {
		put(this.number, String(card.rank));
		node.style.backgroundSize = `${Math.round(100 * (card.bars[0]?.part ?? 0))}% 2px`;
	}
}

/** How urgent a card is. Short waits do not count, or cards would jump at every step. */
function urgency({ phase, since }, now) {
	const first = ["early", "failed", "killed"].indexOf(phase);
	if (first >= 0) return first;
	return phase === "waiting" && since !== null && now - since > 5 ? 3 : 4;
}

/** The cards of one host under its name, or of all ranks if the run has no hosts. */
class Host {
	lost = span("lost");
	counts = h("ul.counts", { label: "Ranks by phase" });
	cards = div("cards");

	constructor(name) {
		this.head = div("host-head", glyph(), h("strong", {}, name), this.lost, this.counts);
		this.node = h("div.host", { role: "group", label: name || null }, this.head, this.cards);
	}

	set(ranks, counted, why) {
		mark(this.node, "data-phase", why === undefined ? null : "killed");
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
		this.title = title("");
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
		this.more = new Card();
		this.detail = h("div.detail.card", {}, ...this.more.children);
		const head = div("bar-head", this.title, this.sorting, this.finder);
		this.node = section("ranks", "All ranks", head, this.grid, this.detail);
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
		for (const [rank, { node }] of this.boxes) mark(node, "aria-selected", rank === this.view.rank);
		this.sort(now);
		this.group();
		this.explain();
		return false;
	}

	resize(n) {
		put(this.title, plural(n, this.view.store.about.unit));
		show(this.sorting, n > 1);
		show(this.finder, n > 8);
		const fits = n <= 8 ? "roomy" : n <= 48 ? "compact" : "dense";
		if (fits === this.size && this.boxes.size <= n) return;
		this.size = fits;
		if (!this.chosen) this.by = fits === "roomy" ? "rank" : "trouble";
		mark(this.view.root, "data-size", fits);
		for (const map of [this.boxes, this.hosts, this.groups]) map.clear();
		this.grid.replaceChildren();
		this.queue = [];
	}

	fill(card) {
		const { rank, host, phase, place, detail, facts } = card;
		const box = held(this.boxes, rank, () => (this.size === "dense" ? new Tile() : new Card()));
		box.node ??= h(`div.card.${this.size}`, { role: "option", tabindex: -1, "data-rank": rank }, ...box.children);
		box.card = card;
		const warning = facts.find(({ id }) => id === "fallbacks")?.label;
		box.label = joined(`${this.view.store.about.unit} ${rank}`, phase, place, detail, warning, host);
		mark(box.node, "data-phase", phase);
		mark(box.node, "aria-label", box.label);
		box.set(card, this.view.store, box.node);
	}

	/** Orders the cards, unless the pointer or the keyboard is on one. */
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
		const number = this.needle.match(/^(?:rank |device )?(\d+)$/)?.[1]; // of a rank, not in a line or a time
		for (const [rank, { node, label }] of this.boxes) show(node, number ? rank === Number(number) : matches(label));
		for (const [name, ranks] of this.groups) {
			const host = this.hosts.get(name);
			// The ranks of an only host are counted in the head.
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
		const { store } = this.view;
		for (const box of this.boxes.values()) box.time?.(box.card, store);
		this.view.changed("ranks"); // a long wait becomes urgent without a message
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

	/** For small cards: the whole card of the selected rank, else of the one under the pointer. */
	explain() {
		show(this.detail, this.size !== "roomy");
		const keyed = this.grid.contains(document.activeElement) ? this.active : undefined;
		const rank = [this.view.rank, this.hovered, keyed, this.order[0]].find((r) => this.boxes.has(r));
		const card = this.view.store.cards.get(rank);
		if (this.size === "roomy" || !card) return;
		mark(this.detail, "data-rank", rank);
		mark(this.detail, "data-phase", card.phase);
		this.more.set(card, this.view.store);
	}
}

// --- figures ---

const [LEFT, RIGHT, TOP, BOTTOM, HIGH] = [46, 22, 6, 18, 124]; // of a chart, in pixels

/** About `wanted` round numbers within [low, high], and their distance. */
function ticks(low, high, wanted) {
	const rough = (high - low) / wanted;
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
	const values = [];
	for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && values.length < 20; k++) values.push(k * step || 0);
	return [values, step];
}

function tickText(value, step) {
	if (Math.abs(value) >= 1e6 || (step < 1e-4 && value)) return value.toExponential(1).replace("e+", "e");
	const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
	return digits ? value.toFixed(digits) : count(value);
}

/** The least and the greatest number in the lists, without NaN. */
function reach(lists) {
	let [low, high] = [Infinity, -Infinity];
	for (const list of lists) {
		for (const value of list) {
			if (value < low) low = value;
			if (value > high) high = value;
		}
	}
	return low > high ? [0, 1] : [low, high];
}

/** The index of the point nearest x. */
const nearest = (xs, x) =>
	xs.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0);

/** A path through the points, with only the extremes of each pixel column. */
function trace({ x, y }, sx, sy) {
	let path = "";
	let pen = "M";
	let [column, low, high] = [null, 0, 0];
	for (let i = 0; i < x.length; i++) {
		if (Number.isNaN(y[i])) {
			[pen, column] = ["M", null];
			continue;
		}
		const [px, py] = [Math.round(sx(x[i]) * 2) / 2, Math.round(sy(y[i]) * 10) / 10];
		if (px !== column) [column, low, high] = [px, py, py];
		else if (py >= low && py <= high) continue;
		else [low, high] = [Math.min(low, py), Math.max(high, py)];
		path += `${pen}${px} ${py}`;
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
		let [x0, x1] = reach([...lines.values()].map(({ x }) => x));
		let [y0, y1] = reach([...lines.values()].map(({ y }) => y));
		if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
		const margin = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
		[y0, y1] = [y0 - margin, y1 + margin];
		const across = (wide - LEFT - RIGHT) / (x1 - x0);
		const sx = (x) => LEFT + (x - x0) * across;
		const sy = (y) => HIGH - BOTTOM - ((y - y0) / (y1 - y0)) * (HIGH - TOP - BOTTOM);
		mark(this.svg, "viewBox", `0 0 ${wide} ${HIGH}`);
		this.drawAxes([x0, x1, y0, y1], sx, sy);
		this.drawLines(lines, sx, sy);
		this.read(lines, this.pointer === undefined ? null : x0 + (this.pointer - LEFT) / across, sx);
	}

	drawAxes(range, sx, sy) {
		const [x0, x1, y0, y1] = range;
		fill(this.axes, `${range} ${this.wide}`, () => {
			const [ys, tall] = ticks(y0, y1, 4);
			const [xs, broad] = ticks(x0, x1, Math.max(2, Math.floor(this.wide / 90)));
			const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
			const below = xs.map((value) => text(sx(value), HIGH - 4, "middle", tickText(value, broad)));
			const beside = ys.flatMap((value) => {
				const y = Math.round(sy(value)) + 0.5;
				const line = svg("line", { x1: LEFT, x2: this.wide - RIGHT, y1: y, y2: y });
				return [line, text(LEFT - 6, y + 3.5, "end", tickText(value, tall))];
			});
			return [...beside, ...below];
		});
	}

	/** Few ranks: a colored line each. Many: bundles of pale lines. */
	drawLines(lines, sx, sy) {
		const focused = this.view.rank;
		const named = new Map([...lines].filter(([rank]) => lines.size <= 8 || rank === focused));
		const wanted = new Map();
		if (lines.size > 8) {
			const bundles = Array(8).fill("");
			for (const [rank, line] of lines) bundles[rank % 8] += trace(line, sx, sy);
			bundles.forEach((d, i) => wanted.set(`many ${i}`, d));
		}
		for (const [rank, line] of named) wanted.set(rank, trace(line, sx, sy));
		const one = (rank) => tint(svg("path.trace", { "data-rank": rank }), rank);
		const paths = [...wanted].map(([key, d]) => {
			const path = held(this.paths, key, () => (typeof key === "string" ? svg("path.many") : one(key)));
			mark(path, "d", d);
			path.classList.toggle("xn-lit", key === focused);
			path.classList.toggle("xn-pale", named.has(focused) && key !== focused);
			return path;
		});
		fill(this.plot, String([...wanted.keys()]), () => paths);
		this.plot.style.setProperty("--xn-many", Math.max(0.15, Math.min(0.5, 16 / lines.size)));
		this.drawEnds(named, sx, sy);
	}

	/** The rank's number at the end of its line: color alone does not tell lines apart. */
	drawEnds(lines, sx, sy) {
		const ends = [];
		for (const [rank, { x, y }] of lines) {
			const i = y.findLastIndex((value) => !Number.isNaN(value));
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

	/** The legend: the values under the pointer, or the last ones. */
	read(lines, x, sx) {
		const values = new Map();
		let step = null;
		for (const [rank, line] of [...lines].sort(([a], [b]) => a - b)) {
			const i = x === null ? line.x.length - 1 : nearest(line.x, x);
			values.set(rank, line.y[i]);
			if (x !== null && (step === null || Math.abs(line.x[i] - x) < Math.abs(step - x))) step = line.x[i];
		}
		put(this.at, step === null ? "last" : `step ${figure(step)}`);
		mark(this.cross, "visibility", step === null ? "hidden" : null);
		if (step !== null) for (const name of ["x1", "x2"]) mark(this.cross, name, sx(step));
		const rows = (lines.size <= 8 ? [...values] : this.summary(values)).map(([key, value]) => [key, figure(value)]);
		const name = (key) => (typeof key === "number" ? `rank ${key}` : key);
		mark(this.svg, "aria-label", `${this.name}: ${rows.map(([key, value]) => `${name(key)} ${value}`).join(", ")}`);
		fill(this.legend, String(rows), () => rows.map(([key, value]) => {
			const label = typeof key === "number" ? tint(span("key.one", name(key)), key) : span("key", key);
			return h("span", { "data-legend": key }, label, h("b", {}, value));
		}));
	}

	summary(values) {
		const sorted = [...values.values()].filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
		const last = sorted.length - 1;
		const median = (sorted[last >> 1] + sorted[(last + 1) >> 1]) / 2;
		const rows = [["min", sorted[0]], ["median", median], ["max", sorted[last]]];
		const { rank } = this.view;
		return values.has(rank) ? [[rank, values.get(rank)], ...rows] : rows;
	}
}

class Figures {
	charts = new Map();
	grid = div("figures-grid");
	node = section("figures", "Figures", this.grid);
	queue = []; // charts to draw, one in each frame

	constructor(view) {
		this.view = view;
		this.resized = new ResizeObserver(() => view.redraw("figures"));
		this.resized.observe(this.grid);
	}

	get every() {
		return this.view.store.cards.size > 32 ? 500 : 150;
	}

	draw() {
		const { figures } = this.view.store;
		show(this.node, figures.size);
		const names = [...figures.keys()];
		const chart = (name) => held(this.charts, name, () => new Chart(this.view, name));
		fill(this.grid, JSON.stringify(names), () => names.map((name) => chart(name).node));
		if (!this.queue.length) this.queue = names;
		const name = this.queue.shift();
		if (figures.has(name)) chart(name).draw(figures.get(name));
		return this.queue.length > 0;
	}
}

// --- output ---

const option = ([value, text]) => h("option", { value }, text);
const file = (rank, stream) => (rank === null ? `job.${stream}` : `rank-${rank}.${stream}`);

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
		this.foot = div("foot", span("quiet", "Full output"), this.path, link("Copy path", copyPath));
		const head = div("bar-head", title("Output"), this.whose, this.streams, this.filter, this.matches, span("space"), this.follow, this.copy);
		this.node = section("output", "Output", head, div("screen", this.log, this.jump), this.foot);
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
		if (this.clear) this.body.replaceChildren();
		this.clear = false;
		if (!held) this.append();
		this.count(now);
		mark(this.log, "data-follow", !held);
		mark(this.log, "data-scope", one ? "one" : "all");
		mark(this.follow, "aria-pressed", !held);
		show(this.jump, held);
		const fresh = held ? this.lines.total(rank) - this.heldAt : 0;
		put(this.jump, joined("Jump to the end", fresh > 0 && plural(fresh, "new line")));
		show(this.earlier, one && !this.first);
		show(this.foot, record);
		put(this.path, one ? `${record}/${file(rank, this.stream === "err" ? "err" : "out")}` : record);
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
		if (fresh.length === ROWS_LIVE) this.body.replaceChildren();
		this.body.append(...fresh.map((line) => this.row(line)));
		while (this.body.childNodes.length > ROWS_LIVE) this.body.firstChild.remove();
	}

	row({ rank, stream, gap, text }) {
		const tag = tint(span("tag", rank ?? "cell"), rank);
		const words = span("text");
		if (gap) words.append(`… ${plural(gap, "line")} not shown, in ${file(rank, stream)}`);
		else ansi(words, text, this.needle);
		const err = stream === "err" ? h("span.err", { title: "stderr" }, "err") : "";
		return h(gap ? "div.row.gap" : "div.row", { "data-rank": rank ?? "job", "data-stream": stream }, tag, err, words);
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
		this.prepend(rows.slice(0, Math.max(0, rows.length - this.body.childNodes.length)));
		this.rows = rows;
	}

	/** Adds lines at the top; those in sight stay where they are. */
	prepend(lines) {
		const { log, body } = this;
		const [top, high] = [log.scrollTop, log.scrollHeight];
		body.prepend(...lines.map((line) => this.row(line)));
		log.scrollTop = top + log.scrollHeight - high;
		this.scrollTop = log.scrollTop;
		this.rows.unshift(...lines);
		this.rows.length = Math.min(this.rows.length, ROWS);
		if (body.childNodes.length > ROWS) this.auto = false; // the last row is no longer the last line
		while (body.childNodes.length > ROWS) body.lastChild.remove();
		this.view.changed("output");
	}

	/** Shows earlier lines: those held, then those the kernel reads from the record. */
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
			put(this.words, "This kernel cannot answer while the cell runs. The file below has all output.");
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

	/** Sees whether the background is dark: each front end marks its theme in another way. */
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
