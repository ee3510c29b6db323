// The live panel of a run: every rank at a glance, its output, Stop and Stacks.
//
// The rule: messages only change the store (one per model, bounded); a view draws what changed in
// one animation frame, and only while it can be seen. Text from outside is only ever set as text.

const PATIENCE = 800; // ms that the kernel has to answer a request
const HELD = 8000; // lines held over all ranks,
const HELD_EACH = 30; // at least these of each,
const HELD_FOCUSED = 2000; // and up to these of one that is looked at
const FETCHED = 5000; // lines of a view that was scrolled back
const ROWS = 1000; // lines in the page while it is held,
const ROWS_LIVE = 100; // and while it follows: more cannot be read, and would cost frames
const LONGEST = 4000; // characters shown of a line
const POINTS = 40000; // points held of one figure

// --- values from outside -------------------------------------------------------------------------

const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
const objects = (x) => (Array.isArray(x) ? x.filter(isObject) : []);
const number = (x) => (typeof x === "number" && Number.isFinite(x) ? x : null);
const integers = (x) => (Array.isArray(x) ? x.filter(Number.isInteger) : []);
const isRank = (x) => x === null || (Number.isInteger(x) && x >= 0);

// Python has cleaned the text; whatever slipped through is made visible rather than obeyed.
const ODD = /[\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const visible = (c) => {
  const code = c.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return code < 0xa0 ? "\ufffd" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};
const inert = (text) => text.replace(ODD, visible);
const SGR = /\x1b\[([0-9;:]*)m/g;
const string = (x) => (typeof x === "string" ? inert(x) : "");
const strings = (x) => (Array.isArray(x) ? x.filter((s) => typeof s === "string").map(inert) : []);
const plain = (text) => inert(text.replace(SGR, "")).replaceAll("\x1b", "␛");

// A copy, since a slice would keep the whole string that it is cut from.
const cut = (text) => {
  const kept = ` ${text.slice(0, LONGEST)}`.slice(1);
  return `${kept}\x1b[m … ${count(text.length - LONGEST)} more characters`;
};

const encoder = new TextEncoder();
const ASCII = /^[\0-\x7f]*$/;
const bytes = (text) => (ASCII.test(text) ? text.length : encoder.encode(text).length);

function readBar(raw) {
  if (!isObject(raw)) return null;
  const { done, total, rate, eta } = raw;
  return {
    label: string(raw.label),
    done: number(done) ?? 0,
    total: number(total),
    rate: number(rate),
    eta: number(eta),
  };
}

function readCard(raw) {
  const card = { rank: raw.rank, phase: PHASES.includes(raw.phase) ? raw.phase : "starting" };
  for (const key of ["device", "host", "place", "detail", "line"]) card[key] = string(raw[key]);
  for (const key of ["since", "pid", "rss", "cpu", "device_used", "device_limit"])
    card[key] = number(raw[key]);
  for (const key of ["compiles", "compile_seconds", "steps"]) card[key] = number(raw[key]) ?? 0;
  const fallbacks = isObject(raw.fallbacks) ? Object.entries(raw.fallbacks) : [];
  card.fallbacks = fallbacks.filter(([, n]) => number(n)).map(([name, n]) => [inert(name), n]);
  card.bars = objects(raw.bars).slice(0, 3).map(readBar);
  return card;
}

const readTrouble = (raw) => ({
  ranks: integers(raw.ranks),
  first: raw.first === true,
  title: string(raw.title),
  place: string(raw.place),
  text: typeof raw.text === "string" ? raw.text : "",
  others: strings(raw.others),
});

const readGroup = (raw) => ({
  ranks: integers(raw.ranks),
  place: string(raw.place),
  stack: typeof raw.stack === "string" ? raw.stack : "",
  note: string(raw.note),
});

function readAbout(raw) {
  const about = { simulated: raw.simulated === true, notices: strings(raw.notices) };
  for (const key of ["cell", "headline", "host", "stopping", "record"]) about[key] = string(raw[key]);
  for (const key of ["started", "ended", "elapsed", "ranks"]) about[key] = number(raw[key]);
  about.ok = typeof raw.ok === "boolean" ? raw.ok : null;
  return about;
}

// --- words ---------------------------------------------------------------------------------------

// In the order of their urgency; the style sheet gives each a shape and a colour.
const PHASES = "failed killed waiting compiling starting running stopped finished".split(" ");
const OVER = new Set(["finished", "failed", "killed", "stopped"]);

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (n) => grouped.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const two = (n) => String(n).padStart(2, "0");

function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes}:${two(s % 60)}`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(s % 60)}`;
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = n < 1 ? 0 : Math.min(4, Math.floor(Math.log2(n) / 10));
  const value = n / 1024 ** unit;
  return [unit && value < 100 ? value.toFixed(1) : value.toFixed(0), units[unit]];
}

function figure(value) {
  if (!Number.isFinite(value)) return "–";
  const large = Math.abs(value);
  if (large >= 1e6 || (large < 1e-3 && large > 0)) return value.toExponential(2);
  if (Number.isInteger(value)) return count(value);
  return String(Number(value.toPrecision(4)));
}

const rate = (r) => (r >= 10 ? `${count(r)}/s` : r >= 0.1 ? `${r.toFixed(1)}/s` : `${(r * 60).toFixed(1)}/min`);

function spell(ranks) {
  const parts = [];
  for (let i = 0, j; i < ranks.length; i = j) {
    for (j = i + 1; j < ranks.length && ranks[j] === ranks[j - 1] + 1; ) j++;
    if (j - i > 2) parts.push(`${ranks[i]}–${ranks[j - 1]}`);
    else parts.push(...ranks.slice(i, j));
  }
  return `rank${ranks.length === 1 ? "" : "s"} ${parts.join(", ")}`;
}

// --- nodes ---------------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const name in attributes) {
    const value = attributes[name];
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}

const div = (name, ...children) => h("div", { class: `xn-${name}` }, ...children);
const span = (name, ...children) => h("span", { class: `xn-${name}` }, ...children);
const button = (label, attributes, click) =>
  h("button", { type: "button", class: "xn-button", click, ...attributes }, label);

/** Sets the text of a node of ours; touches the page only when it differs. */
function put(node, text) {
  if (node.xnText !== text) node.textContent = node.xnText = text;
}

function mark(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const show = (node, shown) => {
  if (node.hidden === shown) node.hidden = !shown;
};

const glyph = () => h("i", { class: "xn-glyph", "aria-hidden": "true" });

/** A progress bar with its label, counts, rate and time to go. */
function meter() {
  const fill = h("i");
  const track = h("div", { class: "xn-track", role: "progressbar", "aria-valuemin": 0 }, fill);
  const [label, done, pace] = [span("bar-label"), span("bar-done"), span("bar-pace")];
  const node = div("bar", label, track, done, pace);
  const set = (bar) => {
    show(node, Boolean(bar));
    if (!bar) return;
    const part = share(bar);
    put(label, bar.label);
    mark(track, "aria-label", bar.label || "progress");
    mark(track, "aria-valuemax", bar.total === null ? null : String(bar.total));
    mark(track, "aria-valuenow", bar.total === null ? null : String(bar.done));
    track.classList.toggle("xn-endless", part === null);
    fill.style.transform = `scaleX(${part ?? 1})`;
    put(done, bar.total === null ? figure(bar.done) : `${figure(bar.done)} / ${figure(bar.total)}`);
    const pieces = [];
    if (bar.rate !== null) pieces.push(rate(bar.rate));
    if (bar.eta !== null && part !== 1) pieces.push(`${duration(bar.eta)} left`);
    put(pace, pieces.join(" · "));
  };
  return { node, set };
}

const share = (bar) => (bar && bar.total > 0 ? Math.min(1, Math.max(0, bar.done / bar.total)) : null);

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No permission, or a page without https: the way that works everywhere.
    const area = h("textarea", { class: "xn-copy", "aria-hidden": "true" });
    const back = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    back?.focus?.();
  }
}

// --- ANSI: only colours and styles; the rest was removed by the kernel ---------------------------

const CUBE = [0, 95, 135, 175, 215, 255];

function indexed(n) {
  if (n < 16) return n;
  if (n > 231) return `rgb(${Array(3).fill(8 + 10 * (n - 232)).join()})`;
  const at = n - 16;
  return `rgb(${[Math.floor(at / 36), Math.floor(at / 6) % 6, at % 6].map((i) => CUBE[i]).join()})`;
}

/** The colour after a 38 or 48, and how many codes it took. */
function extended(codes, i) {
  const byte = (n) => (n >= 0 && n <= 255 ? Math.floor(n) : 0);
  if (codes[i] === 5) return [indexed(byte(codes[i + 1])), 2];
  if (codes[i] === 2) return [`rgb(${[1, 2, 3].map((k) => byte(codes[i + k])).join()})`, 4];
  return [null, 1];
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const UNFLAGS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

function restyle(style, sequence) {
  const next = { ...style };
  // 38:2::r:g:b has an empty place for a colour space; 38;2;r;g;b has not.
  const codes = sequence.replace(/([34]8:2):\d*:(?=\d*:\d*:)/g, "$1:").split(/[;:]/).map(Number);
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) for (const key in next) delete next[key];
    else if (FLAGS[code]) next[FLAGS[code]] = true;
    else if (UNFLAGS[code]) for (const key of UNFLAGS[code]) delete next[key];
    else if (code === 38 || code === 48) {
      const [colour, taken] = extended(codes, i + 1);
      if (colour !== null) next[code === 38 ? "fg" : "bg"] = colour;
      i += taken;
    } else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 39) delete next.fg;
    else if (code === 49) delete next.bg;
  }
  return next;
}

/** Pieces [style or null, text] of a line. */
function pieces(text) {
  if (!text.includes("\x1b")) return [[null, inert(text)]];
  const found = [];
  let style = {};
  text.split(SGR).forEach((part, i) => {
    if (i % 2) style = restyle(style, part);
    else if (part) found.push([Object.keys(style).length ? style : null, plain(part)]);
  });
  return found;
}

function styled(style, text) {
  if (!style) return text;
  const node = h("span", {}, text);
  for (const key in style) if (style[key] === true) node.classList.add(`xn-${key}`);
  let { fg, bg } = style;
  if (style.inverse) [fg, bg] = [bg ?? "var(--xn-back)", fg ?? "var(--xn-text)"];
  const css = (colour) => (typeof colour === "number" ? `var(--xn-ansi${colour})` : colour);
  if (fg !== undefined) node.style.color = css(fg);
  if (bg !== undefined) node.style.backgroundColor = css(bg);
  return node;
}

/** Fills a node with a line of a rank; what matches `needle` is marked. */
function ansi(node, text, needle = "") {
  if (!needle && !text.includes("\x1b")) {
    node.textContent = inert(text);
    return;
  }
  const parts = pieces(text);
  if (!needle) {
    node.append(...parts.map(([style, part]) => styled(style, part)));
    return;
  }
  // A match may begin in one piece and end in another: cut the pieces where matches do.
  const low = parts.map(([, part]) => part).join("").toLowerCase();
  let [from, start] = [low.indexOf(needle), 0];
  for (const [style, part] of parts) {
    const end = start + part.length;
    let at = start;
    while (at < end) {
      const inside = from >= 0 && at >= from;
      const to = from < 0 ? end : Math.min(end, inside ? from + needle.length : from);
      const piece = styled(style, part.slice(at - start, to - start));
      node.append(inside ? h("mark", { class: "xn-match" }, piece) : piece);
      at = to;
      if (from >= 0 && at >= from + needle.length) from = low.indexOf(needle, at);
    }
    start = end;
  }
}

/** A block of text (traceback, stack) whose lines that stand in the notebook are told apart. */
function block(text) {
  const node = h("pre", { class: "xn-pre", tabindex: 0 });
  for (const line of text.split("\n")) {
    const row = div(/Cell In\s?\[|<ipython-input/.test(line) ? "code xn-own" : "code");
    ansi(row, line.length > LONGEST ? cut(line) : line);
    node.append(row);
  }
  return node;
}

// --- what the page knows -------------------------------------------------------------------------

/** The lines held, by rank (null is the cell itself); each has a number that counts up. */
class Lines {
  constructor() {
    this.byRank = new Map();
    this.received = new Map(); // lines by rank, those not sent included
    this.last = new Map(); // where the newest block of a stream began
    this.next = 0;
    this.ranks = 1;
    this.focused = new Set();
  }

  cap(rank) {
    const fair = Math.max(HELD_EACH, Math.floor(HELD / Math.max(1, this.ranks)));
    return this.focused.has(rank) ? Math.max(HELD_FOCUSED, fair) : fair;
  }

  /** Takes a block of a message; gives whether it was new. */
  add({ rank, stream, start, skipped, lines }) {
    const file = `${rank} ${stream}`;
    if (start <= (this.last.get(file) ?? -1)) return false;
    this.last.set(file, start);
    let held = this.byRank.get(rank);
    if (!held) this.byRank.set(rank, (held = []));
    if (skipped > 0) held.push({ id: this.next++, rank, stream, text: "", at: start, gap: skipped });
    this.read(held, rank, stream, start, lines);
    const over = held.length - this.cap(rank);
    if (over > 0) held.splice(0, over);
    this.received.set(rank, (this.received.get(rank) ?? 0) + skipped + lines.length);
    return true;
  }

  read(held, rank, stream, start, lines) {
    let at = start;
    for (const line of lines) {
      const text = typeof line === "string" ? line : "";
      held.push({ id: this.next++, rank, stream, at, gap: 0, text: text.length > LONGEST ? cut(text) : text });
      at += bytes(text) + 1;
    }
  }

  /** Lines of a rank (undefined: of all) newer than `id` that match, at most `most`, in order. */
  since(rank, id, matches, most) {
    const found = [];
    for (const held of rank === undefined ? this.byRank.values() : [this.byRank.get(rank) ?? []]) {
      for (let i = held.length - 1, n = 0; i >= 0 && held[i].id > id && n < most; i--)
        if (matches(held[i])) n = found.push(held[i]) && n + 1;
    }
    found.sort((a, b) => a.id - b.id);
    return found.length > most ? found.slice(-most) : found;
  }

  total(rank) {
    if (rank !== undefined) return this.received.get(rank) ?? 0;
    let sum = 0;
    for (const n of this.received.values()) sum += n;
    return sum;
  }

  get held() {
    let sum = 0;
    for (const held of this.byRank.values()) sum += held.length;
    return sum;
  }
}

/** A reported figure: for each rank its points, thinned out when there are too many. */
class Figure {
  constructor() {
    this.lines = new Map();
  }

  add(rank, replace, points) {
    let line = this.lines.get(rank);
    if (!line || replace) this.lines.set(rank, (line = { x: [], y: [] }));
    for (const point of points) {
      if (!Array.isArray(point) || number(point[0]) === null) continue;
      line.x.push(point[0]);
      line.y.push(number(point[1]) ?? NaN);
    }
    const most = Math.max(64, Math.min(2000, Math.floor(POINTS / this.lines.size)));
    while (line.x.length > most) {
      const end = line.x.length - 1;
      const kept = (_, i) => i % 2 === 0 || i === end;
      line.x = line.x.filter(kept);
      line.y = line.y.filter(kept);
    }
  }
}

class Store {
  constructor(model) {
    this.model = model;
    this.run = String(model.get("run") ?? "");
    this.about = readAbout({});
    this.bar = null;
    this.cards = new Map();
    this.troubles = [];
    this.figures = new Map();
    this.lines = new Lines();
    this.stacks = { state: "closed", groups: [] };
    this.say = "";
    this.seq = null;
    this.offset = 0; // the kernel's clock less the page's, in seconds
    this.views = new Set();
    this.requests = new Map(); // number → what to do when it is answered, and when not
    this.asked = 0;
    this.stop = "no"; // no, asked, told (the kernel has it), interrupted
    this.receive = (message) => this.take(message);
    model.on("msg:custom", this.receive);
    this.whole();
  }

  close() {
    this.model.off("msg:custom", this.receive);
    for (const { timer } of this.requests.values()) clearTimeout(timer);
    clearTimeout(this.later);
  }

  get over() {
    return this.about.ended !== null || this.about.ok !== null;
  }

  get now() {
    return Date.now() / 1000 + this.offset;
  }

  get elapsed() {
    const { started, ended, elapsed } = this.about;
    if (this.over || started === null) return elapsed ?? (ended ?? 0) - (started ?? 0);
    return this.now - started;
  }

  changed(...parts) {
    for (const view of this.views) view.changed(parts);
  }

  // messages from the kernel

  take(message) {
    if (!isObject(message) || message.run !== this.run) {
      console.debug("xla_nb: ignored a message of another run", message?.run);
      return;
    }
    if (message.type === "news") this.news(message);
    else if (message.type === "ack") this.acknowledged(message.request);
    else if (message.type === "stacks") this.stacked(message);
    else if (message.type === "earlier") this.fetched(message);
    else console.debug("xla_nb: ignored a message of unknown type", message.type);
  }

  news(message) {
    if (!Number.isInteger(message.seq)) return;
    if (!message.whole && (this.seq === null || message.seq !== this.seq + 1)) this.whole();
    this.seq = message.seq;
    if (number(message.now) !== null) this.offset = message.now - Date.now() / 1000;
    if (message.whole === true) message = { bar: null, cards: [], troubles: [], figures: [], ...message };
    if (isObject(message.about)) this.tell(readAbout(message.about));
    if ("bar" in message) {
      this.bar = readBar(message.bar);
      this.changed("head");
    }
    if (message.cards) this.dealt(objects(message.cards), message.whole === true);
    if (message.troubles) {
      this.troubles = objects(message.troubles).map(readTrouble);
      this.changed("troubles");
    }
    if (message.figures) this.drawn(objects(message.figures), message.whole === true);
    if (message.lines) this.printed(objects(message.lines));
  }

  tell(about) {
    this.about = about;
    if (this.over && this.stop !== "no") {
      this.stop = "no";
      this.say = "";
    }
    this.lines.ranks = Math.max(this.lines.ranks, about.ranks ?? 0);
    this.changed("head", "output");
  }

  dealt(raw, whole) {
    const cards = raw.filter((card) => Number.isInteger(card.rank) && card.rank >= 0).map(readCard);
    if (whole) this.cards = new Map();
    for (const card of cards) this.cards.set(card.rank, card);
    this.lines.ranks = Math.max(this.lines.ranks, this.cards.size);
    this.changed("head", "ranks");
  }

  drawn(raw, whole) {
    if (whole) this.figures = new Map();
    for (const { name, rank, replace, points } of raw) {
      if (typeof name !== "string" || !Number.isInteger(rank) || !Array.isArray(points)) continue;
      let held = this.figures.get(name);
      if (!held) this.figures.set(name, (held = new Figure()));
      held.add(rank, replace === true, points);
    }
    this.changed("figures");
  }

  printed(blocks) {
    for (const { rank, stream, start, skipped, lines } of blocks) {
      const known = isRank(rank) && (stream === "out" || stream === "err") && Array.isArray(lines);
      if (!known || number(start) === null) continue;
      this.lines.add({ rank, stream, start, skipped: number(skipped) ?? 0, lines });
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

  /** Asks for everything, at most once a second. */
  whole() {
    const wait = (this.wholeAsked ?? -Infinity) + 1000 - performance.now();
    if (wait > 0) {
      this.later ??= setTimeout(() => this.whole(), wait);
      return;
    }
    clearTimeout(this.later);
    this.later = undefined;
    this.wholeAsked = performance.now();
    this.send({ type: "whole" });
  }

  /** Sends a request; `silent` is called when the kernel does not answer in time. */
  ask(message, silent, answered = () => {}) {
    const request = ++this.asked;
    const timer = setTimeout(() => {
      const waiting = this.requests.get(request);
      if (waiting.acknowledged) return;
      waiting.late = true;
      silent();
    }, PATIENCE);
    this.requests.set(request, { timer, answered });
    this.send({ ...message, request });
    if (this.requests.size > 100) this.requests.delete(this.requests.keys().next().value);
    return request;
  }

  acknowledged(request) {
    const waiting = this.requests.get(request);
    if (!waiting || waiting.acknowledged) return null;
    clearTimeout(waiting.timer);
    waiting.acknowledged = true;
    if (waiting.type === "stop" && this.stop === "asked") this.told();
    return waiting;
  }

  tellUser(text) {
    this.say = text;
    this.changed("head");
  }

  /** Stop: ask the kernel; when it is silent, or at a second click, interrupt it. */
  halt() {
    if (this.over) return;
    if (this.stop !== "no") return this.interrupt();
    this.stop = "asked";
    this.tellUser("Asking the ranks to stop…");
    const request = this.ask({ type: "stop" }, () => this.interrupt());
    this.requests.get(request).type = "stop";
  }

  told() {
    this.stop = "told";
    this.tellUser("The ranks have been asked to stop. Click again to interrupt the kernel.");
  }

  async interrupt() {
    if (this.over) return;
    const kernel = this.model.widget_manager?.kernel;
    this.stop = "interrupted";
    if (typeof kernel?.interrupt !== "function") {
      this.tellUser("The kernel does not answer here: press ■ (Interrupt the kernel) in the toolbar.");
      return;
    }
    this.tellUser("The kernel did not answer in time, or was not waited for: interrupting it.");
    try {
      await kernel.interrupt();
      if (!this.over) this.tellUser("The kernel has been interrupted.");
    } catch {
      this.tellUser("The kernel could not be interrupted: press ■ (Interrupt the kernel) in the toolbar.");
    }
  }

  askStacks() {
    this.stacks = { state: "asking", groups: this.stacks.groups };
    this.ask({ type: "stacks" }, () => {
      if (this.stacks.state !== "asking") return;
      this.stacks = { state: "fallback", groups: this.places() };
      this.changed("stacks");
    });
    this.changed("stacks");
  }

  closeStacks() {
    this.stacks = { state: "closed", groups: [] };
    this.changed("stacks");
  }

  /** Where each rank last said it was: what is known when the kernel cannot answer. */
  places() {
    const groups = new Map();
    for (const { rank, phase, place, detail } of [...this.cards.values()].sort((a, b) => a.rank - b.rank)) {
      const note = detail ? `${phase}: ${detail}` : phase;
      const key = `${place}\n${note}`;
      if (!groups.has(key)) groups.set(key, { ranks: [], place, stack: "", note });
      groups.get(key).ranks.push(rank);
    }
    return [...groups.values()];
  }

  stacked(message) {
    this.acknowledged(message.request);
    this.stacks = { state: "answered", groups: objects(message.groups).map(readGroup) };
    this.changed("stacks");
  }

  focus(view, rank) {
    view.rank = rank;
    this.lines.focused = new Set([...this.views].map((other) => other.rank).filter((r) => r !== undefined));
    this.send({ type: "focus", rank: rank ?? null });
  }

  earlier(rank, stream, before, n, answered, silent) {
    this.ask({ type: "earlier", rank, stream, before, count: n }, silent, answered);
  }

  fetched(message) {
    const waiting = this.requests.get(message.request);
    this.acknowledged(message.request);
    this.requests.delete(message.request);
    if (!waiting || !Array.isArray(message.lines) || number(message.start) === null) return;
    const lines = [];
    const { rank, stream, start } = message;
    this.lines.read(lines, rank, stream, start, message.lines);
    waiting.answered(lines, message.first === true);
  }
}

// --- the parts of a view: each has a node, and draws what the store holds ------------------------

class Head {
  every = 100;

  constructor(view) {
    this.view = view;
    const { store } = view;
    this.cell = h("strong", { class: "xn-cell" });
    this.headline = span("headline");
    this.title = div("title", glyph(), this.cell, this.headline);
    this.elapsed = h("span", { class: "xn-elapsed", title: "time since the run began" });
    this.stacks = button("Stacks", { "data-action": "stacks", "aria-expanded": "false" }, () =>
      store.stacks.state === "closed" ? store.askStacks() : store.closeStacks(),
    );
    this.stop = button("Stop", { "data-action": "stop" }, () => store.halt());
    this.counts = h("ul", { class: "xn-counts", "aria-label": "Ranks by phase" });
    this.chips = new Map();
    this.simulated = span("simulated", "simulated TPU host");
    this.host = span("host");
    this.bar = meter();
    this.bar.node.classList.add("xn-runbar");
    this.say = h("div", { class: "xn-say", role: "status" });
    this.notices = h("ul", { class: "xn-notices", "aria-label": "Notices" });
    this.live = h("div", { class: "xn-live", "aria-live": "polite" });
    this.node = h(
      "header",
      { class: "xn-head" },
      this.title,
      div("actions", this.elapsed, this.stacks, this.stop),
      div("sub", this.counts, this.simulated, this.host),
      this.bar.node,
      this.say,
      this.notices,
      this.live,
    );
  }

  draw(now) {
    const { store, root } = this.view;
    const { about, say } = store;
    const phase = this.phase();
    mark(root, "data-state", phase);
    mark(this.title, "data-phase", { ok: "finished", stopping: "waiting" }[phase] ?? phase);
    put(this.cell, about.cell || store.run);
    put(this.headline, about.headline || "starting");
    this.tick();
    put(this.stop, phase === "stopping" ? "Stopping…" : "Stop");
    mark(this.stop, "aria-busy", phase === "stopping" ? "true" : null);
    this.stop.disabled = this.stacks.disabled = store.over;
    if (store.stacks.state !== "closed") this.stacks.disabled = false;
    mark(this.stacks, "aria-expanded", String(store.stacks.state !== "closed"));
    this.count();
    show(this.simulated, about.simulated);
    show(this.host, Boolean(about.host));
    put(this.host, about.host);
    this.bar.set(store.bar);
    put(this.say, say || about.stopping);
    show(this.say, Boolean(say || about.stopping));
    this.note(about.notices);
    this.speak(now);
  }

  phase() {
    const { about, over, stop } = this.view.store;
    if (over) return about.ok === false ? "failed" : "ok";
    if (stop !== "no" || about.stopping) return "stopping";
    return [...this.view.store.cards.values()].some((card) => card.phase !== "starting") ? "running" : "starting";
  }

  tick() {
    const { store } = this.view;
    const { elapsed } = store;
    const exact = store.over && elapsed < 60;
    put(this.elapsed, exact ? `${elapsed.toFixed(1)} s` : duration(elapsed));
  }

  count() {
    const tally = new Map();
    for (const { phase } of this.view.store.cards.values()) tally.set(phase, (tally.get(phase) ?? 0) + 1);
    for (const phase of PHASES) {
      const n = tally.get(phase) ?? 0;
      if (n && !this.chips.has(phase)) this.addChip(phase);
      const chip = this.chips.get(phase);
      if (!chip) continue;
      show(chip.node, n > 0);
      mark(chip.node, "data-count", String(n));
      put(chip.text, `${count(n)} ${phase}`);
    }
  }

  addChip(phase) {
    const text = h("span");
    const node = h("li", { class: "xn-chip", "data-phase": phase }, glyph(), text);
    this.chips.set(phase, { node, text });
    const order = PHASES.filter((name) => this.chips.has(name));
    this.counts.append(...order.map((name) => this.chips.get(name).node));
  }

  note(notices) {
    show(this.notices, notices.length > 0);
    if (this.told === notices.join("\n")) return;
    this.told = notices.join("\n");
    this.notices.replaceChildren(...notices.map((text) => h("li", { class: "xn-notice" }, text)));
  }

  /** A screen reader hears the headline when it changes, at most every five seconds. */
  speak(now) {
    const text = `${this.cell.xnText}: ${this.headline.xnText}`;
    if (this.spoken === text || (now - (this.spokenAt ?? -1e9) < 5000 && !this.view.store.over)) return;
    this.spokenAt = now;
    put(this.live, (this.spoken = text));
  }
}

class Troubles {
  every = 100;

  constructor(view) {
    this.view = view;
    this.node = h("section", { class: "xn-troubles", role: "region", "aria-label": "Errors", hidden: "" });
    this.drawn = new Map();
  }

  draw() {
    const { troubles } = this.view.store;
    show(this.node, troubles.length > 0);
    const sorted = [...troubles].sort((a, b) => b.first - a.first);
    const next = new Map();
    for (const trouble of sorted) {
      const killed = this.view.store.cards.get(trouble.ranks[0])?.phase === "killed";
      const phase = killed ? "killed" : "failed";
      const key = JSON.stringify([trouble, phase, sorted.length]);
      next.set(key, this.drawn.get(key) ?? this.entry(trouble, phase, sorted.length));
    }
    if ([...next.keys()].join() === [...this.drawn.keys()].join()) return;
    this.drawn = next;
    this.node.replaceChildren(...next.values());
  }

  entry({ ranks, first, title, place, text, others }, phase, groups) {
    const many = ranks.length > 1;
    const order = !first || groups === 1 ? "" : many ? ", one of them first" : " first";
    const node = h(
      "article",
      { class: "xn-trouble", "data-ranks": ranks.join(), "data-first": first, "data-phase": phase },
      div(
        "trouble-head",
        glyph(),
        span("which", `${spell(ranks)} ${phase}${order}`),
        place ? span("trouble-place", place) : "",
        this.links(ranks),
      ),
      div("trouble-title", title),
    );
    if (others.length) node.append(h("ul", { class: "xn-others" }, ...others.map((line) => h("li", {}, line))));
    if (text) {
      const label = many ? `Traceback of rank ${ranks[0]}` : "Traceback";
      const open = first || groups === 1 ? { open: "" } : {};
      node.append(h("details", open, h("summary", {}, label), block(text)));
    }
    return node;
  }

  links(ranks) {
    const link = (rank) =>
      button(`Output of rank ${rank}`, { class: "xn-link" }, () => this.view.focus(rank, true));
    return span("links", ...ranks.slice(0, 4).map(link));
  }
}

class Stacks {
  every = 0;

  constructor(view) {
    this.view = view;
    this.words = h("div", { class: "xn-stack-words", role: "status" });
    this.groups = div("groups");
    this.node = h(
      "section",
      { class: "xn-stacks", role: "region", "aria-label": "Stacks", hidden: "" },
      div(
        "bar-head",
        h("h4", { class: "xn-h" }, "Where each rank is now"),
        button("Ask again", { class: "xn-link" }, () => view.store.askStacks()),
        button("Close stacks", { class: "xn-link" }, () => view.store.closeStacks()),
      ),
      this.words,
      this.groups,
    );
  }

  draw() {
    const { state, groups } = this.view.store.stacks;
    show(this.node, state !== "closed");
    mark(this.node, "data-state", state);
    put(
      this.words,
      {
        asking: "Asking the ranks…",
        fallback:
          "This kernel cannot answer while the cell runs. This is where each rank last said it was:",
        answered: groups.length ? "" : "No rank answered.",
      }[state] ?? "",
    );
    if (this.drawn === groups) return;
    this.drawn = groups;
    this.groups.replaceChildren(...groups.map((group) => this.group(group)));
  }

  group({ ranks, place, stack, note }) {
    return h(
      "article",
      { class: "xn-group", "data-ranks": ranks.join() },
      div(
        "group-head",
        span("which", spell(ranks)),
        ranks.length > 2 ? span("quiet", `(${ranks.length})`) : "",
        place ? span("group-place", place) : span("quiet", "place not known"),
        note ? span("note", note) : "",
      ),
      stack ? block(stack) : "",
    );
  }
}

/** All that is known of one rank, in a card with room for it. */
function roomy() {
  const [number_, phase, since] = [span("number"), span("phase"), span("since")];
  const [place, what, last] = [span("place"), span("what"), div("last")];
  const [device, process] = [span("device"), span("process")];
  const bars = [meter(), meter(), meter()];
  const stats = new Map();
  const list = h("dl", { class: "xn-stats" });
  for (const [key, label] of [
    ["steps", "Steps"],
    ["compiles", "Compiles"],
    ["cpu", "CPU"],
    ["memory", "Memory"],
    ["device", "Device memory"],
    ["fallbacks", "CPU fallbacks"],
  ]) {
    const value = h("dd");
    const node = h("div", { "data-stat": key }, h("dt", {}, label), value);
    list.append(node);
    stats.set(key, { node, value });
  }
  const used = h("i");
  const gauge = h("span", { class: "xn-gauge", "aria-hidden": "true" }, used);
  stats.get("device").node.append(gauge);
  const node = [
    div("card-head", number_, span("state", glyph(), phase), since, device),
    div("where", place, what),
    div("bars", ...bars.map((bar) => bar.node)),
    last,
    list,
    process,
  ];
  const stat = (key, text, title) => {
    const { node: box, value } = stats.get(key);
    show(box, text !== null);
    if (text !== null) put(value, text);
    if (title !== undefined) mark(box, "title", title);
  };
  const set = (card, store) => {
    put(number_, String(card.rank));
    number_.style.setProperty("--xn-hue", hue(card.rank));
    put(phase, card.phase);
    put(device, card.device);
    put(place, card.place);
    put(what, card.detail);
    show(last, !OVER.has(card.phase) || Boolean(card.line));
    put(last, plain(card.line) || "no output yet");
    last.classList.toggle("xn-none", !card.line);
    bars.forEach((bar, i) => bar.set(card.bars[i]));
    stat("steps", count(card.steps));
    stat("compiles", card.compiles ? `${count(card.compiles)} · ${card.compile_seconds.toFixed(1)} s` : "0");
    stat("cpu", card.cpu === null ? null : `${Math.round(100 * card.cpu)} %`);
    stat("memory", card.rss === null ? null : size(card.rss).join(" "));
    stat("device", card.device_used === null ? null : deviceMemory(card));
    show(gauge, Boolean(card.device_limit));
    if (card.device_limit) {
      const part = Math.min(1, card.device_used / card.device_limit);
      used.style.transform = `scaleX(${part})`;
      gauge.classList.toggle("xn-full", part > 0.9);
    }
    const names = card.fallbacks.map(([name, n]) => `${name} ×${count(n)}`).join(", ");
    stat("fallbacks", names ? `⚠ ${names}` : null, names);
    put(process, [card.host, card.pid === null ? "" : `pid ${card.pid}`].filter(Boolean).join(" · "));
    time(card, store);
  };
  const time = (card, store) => put(since, card.since === null ? "" : duration(store.now - card.since));
  return { children: node, set, time };
}

function deviceMemory({ device_used: used, device_limit: limit }) {
  if (limit === null) return size(used).join(" ");
  const [[a, unit], [b, other]] = [size(used), size(limit)];
  return unit === other ? `${a} / ${b} ${other}` : `${a} ${unit} / ${b} ${other}`;
}

/** The important half of a card. */
function compact() {
  const [number_, phase] = [span("number"), span("phase")];
  const [since, place] = [span("since"), span("place")];
  const [fill, last] = [h("i"), div("last")];
  const track = div("track", fill);
  const set = (card, store) => {
    put(number_, String(card.rank));
    number_.style.setProperty("--xn-hue", hue(card.rank));
    put(phase, card.phase);
    put(place, [card.place, card.detail].filter(Boolean).join(" · "));
    put(last, plain(card.line));
    const part = share(card.bars[0]);
    track.style.visibility = part === null ? "hidden" : "";
    fill.style.transform = `scaleX(${part ?? 0})`;
    time(card, store);
  };
  const time = (card, store) => put(since, card.since === null ? "" : duration(store.now - card.since));
  const head = div("card-head", number_, span("state", glyph(), phase), since);
  return { children: [head, place, track, last], set, time };
}

/** A tile: which, how, how far. */
function tile() {
  const number_ = span("number");
  const set = (card, store, node) => {
    put(number_, String(card.rank));
    node.style.backgroundSize = `${Math.round(100 * (share(card.bars[0]) ?? 0))}% 2px`;
  };
  return { children: [glyph(), number_], set, time: () => {} };
}

const SIZES = { roomy, compact, dense: tile };
const sizeFor = (ranks) => (ranks <= 8 ? "roomy" : ranks <= 48 ? "compact" : "dense");

// The first eight are far apart; the rest go round by the golden angle.
const HUES = [255, 45, 150, 325, 205, 80, 290, 15];
const hue = (rank) => (rank === null ? 0 : HUES[rank] ?? Math.round(rank * 137.508) % 360);

/** How urgent a card is. Only what stays so counts, or cards would jump at every step. */
function urgency(card, now) {
  if (card.phase === "failed") return 0;
  if (card.phase === "killed") return 1;
  if (card.phase === "waiting" && card.since !== null && now - card.since > 5) return 2;
  return card.phase === "stopped" ? 3 : 4;
}

class Ranks {
  every = 100;

  constructor(view) {
    this.view = view;
    this.boxes = new Map();
    this.order = [];
    this.sizes = null;
    this.active = null;
    this.title = h("h4", { class: "xn-h" }, "Ranks");
    this.sorts = {
      trouble: button("By trouble", { class: "xn-choice" }, () => this.sortBy("trouble")),
      rank: button("By rank", { class: "xn-choice" }, () => this.sortBy("rank")),
    };
    this.sorting = h(
      "span", { class: "xn-choices", role: "group", "aria-label": "Order of ranks" },
      this.sorts.trouble, this.sorts.rank,
    );
    this.grid = h("div", {
      class: "xn-grid", role: "listbox", "aria-label": "Ranks", "aria-orientation": "horizontal",
      keydown: (event) => this.key(event),
      click: (event) => this.click(event),
      focusin: (event) => this.activate(this.of(event)),
      focusout: () => this.view.changed(["ranks"]),
      pointerover: (event) => this.hover(this.of(event)),
      pointerleave: () => this.hover(null),
    });
    this.more = roomy();
    this.detail = h("div", { class: "xn-detail xn-card", hidden: "" }, ...this.more.children);
    this.node = h(
      "section", { class: "xn-ranks", hidden: "" },
      div("bar-head", this.title, this.sorting), this.grid, this.detail,
    );
  }

  of(event) {
    const box = event.target.closest?.("[role=option]");
    return box ? Number(box.dataset.rank) : null;
  }

  draw(now) {
    const { store } = this.view;
    const n = store.cards.size;
    show(this.node, n > 0);
    if (!n) return;
    this.resize(n);
    mark(this.grid, "data-ranks", String(n));
    for (const [rank, card] of store.cards) this.fill(rank, card);
    for (const [rank, box] of this.boxes) {
      if (!store.cards.has(rank)) {
        box.node.remove();
        this.boxes.delete(rank);
        this.order = this.order.filter((other) => other !== rank);
      }
    }
    put(this.title, plural(n, "rank"));
    show(this.sorting, n > 1);
    this.sort(now);
    this.explain();
  }

  resize(n) {
    const sizes = sizeFor(n);
    if (sizes === this.sizes) return;
    this.sizes = sizes;
    this.by ??= sizes === "roomy" ? "rank" : "trouble";
    if (!this.chosen) this.by = sizes === "roomy" ? "rank" : "trouble";
    mark(this.view.root, "data-size", sizes);
    this.grid.replaceChildren();
    this.boxes.clear();
    this.order = [];
  }

  fill(rank, card) {
    let box = this.boxes.get(rank);
    if (!box) {
      box = SIZES[this.sizes]();
      box.node = h(
        "div",
        { class: `xn-card xn-${this.sizes}`, role: "option", tabindex: -1, "aria-selected": "false", "data-rank": rank },
        ...box.children,
      );
      this.boxes.set(rank, box);
    }
    if (box.card !== card) {
      box.card = card;
      mark(box.node, "data-phase", card.phase);
      const label = [`rank ${rank}`, card.phase, card.place, card.detail, card.fallbacks.length ? "CPU fallbacks" : ""];
      mark(box.node, "aria-label", label.filter(Boolean).join(", "));
      box.set(card, this.view.store, box.node);
    }
    mark(box.node, "aria-selected", String(this.view.rank === rank));
  }

  /** Puts the cards in order, but never under the pointer or the keyboard. */
  sort(now) {
    const { store } = this.view;
    const known = this.order.length === this.boxes.size;
    const held = this.hovered !== undefined || this.grid.contains(document.activeElement);
    if (known && ((held && !this.resort) || (!this.resort && now - this.sorted < 500))) return;
    this.resort = false;
    this.sorted = now;
    const level = new Map([...this.boxes.keys()].map((rank) => [rank, urgency(store.cards.get(rank), store.now)]));
    const order = [...this.boxes.keys()].sort(
      (a, b) => (this.by === "trouble" ? level.get(a) - level.get(b) : 0) || a - b,
    );
    for (const key in this.sorts) mark(this.sorts[key], "aria-pressed", String(key === this.by));
    if (known && order.every((rank, i) => rank === this.order[i])) return;
    this.order = order;
    let at = this.grid.firstChild;
    for (const rank of order) {
      const { node } = this.boxes.get(rank);
      if (node === at) at = at.nextSibling;
      else this.grid.insertBefore(node, at);
    }
    if (!this.boxes.has(this.active)) this.active = order[0];
    this.rove(this.active);
  }

  sortBy(by) {
    this.by = by;
    this.chosen = this.resort = true;
    this.view.changed(["ranks"]);
  }

  tick() {
    for (const box of this.boxes.values()) if (!OVER.has(box.card.phase)) box.time(box.card, this.view.store);
    this.view.changed(["ranks"]); // a long wait becomes trouble without a message
  }

  // one card has the tabindex; the arrows move it

  rove(rank) {
    this.boxes.get(this.active)?.node.setAttribute("tabindex", "-1");
    this.active = rank;
    this.boxes.get(rank)?.node.setAttribute("tabindex", "0");
  }

  activate(rank) {
    if (rank === null) return;
    this.rove(rank);
    this.view.changed(["ranks"]);
  }

  hover(rank) {
    this.hovered = rank === null ? undefined : rank;
    if (this.sizes !== "roomy") this.view.changed(["ranks"]);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" };
    const at = this.order.indexOf(this.active);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") this.view.focus(this.active);
    else if (event.key === "Escape") this.view.focus(undefined);
    else if (steps[event.key]) this.go(at, steps[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  go(at, step) {
    const end = this.order.length - 1;
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const by = { up: -columns, down: columns, home: -at, end: end - at }[step] ?? step;
    const to = at + by;
    if (to < 0 || to > end) return;
    this.boxes.get(this.order[to]).node.focus();
  }

  click(event) {
    const rank = this.of(event);
    if (rank !== null && !String(getSelection())) this.view.focus(this.view.rank === rank ? undefined : rank);
  }

  /** Small cards: all about the one under the pointer, else the keyboard's, else the chosen. */
  explain() {
    show(this.detail, this.sizes !== "roomy");
    if (this.sizes === "roomy") return;
    const keyed = this.grid.contains(document.activeElement) ? this.active : undefined;
    const rank = [this.hovered, keyed, this.view.rank, this.order[0]].find((r) => this.boxes.has(r));
    const card = this.view.store.cards.get(rank);
    if (!card) return;
    mark(this.detail, "data-rank", String(rank));
    mark(this.detail, "data-phase", card.phase);
    this.more.set(card, this.view.store);
  }
}

// --- figures -------------------------------------------------------------------------------------

const [PAD_LEFT, PAD_RIGHT, PAD_TOP, PAD_BOTTOM, HIGH] = [46, 22, 6, 18, 124];

/** Three to six round numbers within [low, high]. */
function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step || 0);
  return [found, step];
}

function tickText(value, step) {
  const large = Math.abs(value);
  if (large >= 1e6 || (step < 1e-4 && value !== 0)) return value.toExponential(1).replace("e+", "e");
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** The index of the point nearest to x; points come in order. */
function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

/** A path through the points; of many in one pixel column only the extremes are drawn. */
function trace({ x, y }, sx, sy) {
  let path = "";
  let pen = "M";
  let [column, low, high] = [null, 0, 0];
  const to = (px, py) => {
    path += `${pen}${px} ${py}`;
    pen = "L";
  };
  for (let i = 0; i < x.length; i++) {
    if (Number.isNaN(y[i])) {
      pen = "M";
      column = null;
      continue;
    }
    const [px, py] = [Math.round(sx(x[i]) * 2) / 2, Math.round(sy(y[i]) * 10) / 10];
    if (px !== column) {
      [column, low, high] = [px, py, py];
      to(px, py);
    } else if (py < low || py > high) {
      to(px, py);
      [low, high] = [Math.min(low, py), Math.max(high, py)];
    }
  }
  return pen === "L" && path.lastIndexOf("M") === path.length ? "" : path;
}

class Chart {
  constructor(view, name) {
    this.view = view;
    this.name = name;
    this.paths = new Map();
    this.axes = svg("g", { class: "xn-axes" });
    this.plot = svg("g", { class: "xn-lines", fill: "none" });
    this.ends = svg("g", { class: "xn-ends" });
    this.cross = svg("line", { class: "xn-cross" });
    this.svg = svg("svg", { class: "xn-plot", height: HIGH, tabindex: 0, role: "img" }, this.axes, this.plot, this.ends, this.cross);
    this.at = span("at", "last");
    this.legend = div("legend");
    this.items = new Map();
    this.node = h(
      "figure", { class: "xn-figure", "data-figure": name },
      h("figcaption", { class: "xn-caption" }, h("strong", {}, string(name)), this.at),
      this.svg, this.legend,
    );
    const draw = () => view.changed(["figures"], true);
    this.svg.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      draw();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointer = undefined;
      draw();
    });
    this.svg.addEventListener("blur", () => {
      this.pointer = undefined;
      draw();
    });
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
      if (!step) return;
      this.pointer = Math.min(this.wide - PAD_RIGHT, Math.max(PAD_LEFT, (this.pointer ?? this.wide - PAD_RIGHT) + step));
      event.preventDefault();
      event.stopPropagation();
      draw();
    });
  }

  draw(figure_, wide) {
    const { lines } = figure_;
    this.wide = wide;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of lines.values()) {
      for (let i = 0; i < x.length; i++) {
        if (x[i] < x0) x0 = x[i];
        if (x[i] > x1) x1 = x[i];
        if (y[i] < y0) y0 = y[i];
        if (y[i] > y1) y1 = y[i];
      }
    }
    if (x0 > x1) [x0, x1] = [0, 1];
    if (y0 > y1) [y0, y1] = [0, 1];
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    const margin = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    [y0, y1] = [y0 - margin, y1 + margin];
    const sx = (v) => PAD_LEFT + ((v - x0) / (x1 - x0)) * (wide - PAD_LEFT - PAD_RIGHT);
    const sy = (v) => HIGH - PAD_BOTTOM - ((v - y0) / (y1 - y0)) * (HIGH - PAD_TOP - PAD_BOTTOM);
    mark(this.svg, "viewBox", `0 0 ${wide} ${HIGH}`);
    this.grid(x0, x1, y0, y1, sx, sy);
    this.draw_(lines, sx, sy);
    const x = this.pointer === undefined ? null
      : x0 + ((this.pointer - PAD_LEFT) / (wide - PAD_LEFT - PAD_RIGHT)) * (x1 - x0);
    this.read(lines, x, sx);
  }

  grid(x0, x1, y0, y1, sx, sy) {
    const key = [x0, x1, y0, y1, this.wide].join();
    if (key === this.gridKey) return;
    this.gridKey = key;
    const parts = [];
    const [ys, yStep] = ticks(y0, y1, 4);
    for (const v of ys) {
      const y = Math.round(sy(v)) + 0.5;
      parts.push(svg("line", { x1: PAD_LEFT, x2: this.wide - PAD_RIGHT, y1: y, y2: y }));
      parts.push(svg("text", { x: PAD_LEFT - 6, y: y + 3.5, "text-anchor": "end" }, tickText(v, yStep)));
    }
    const [xs, xStep] = ticks(x0, x1, Math.max(2, Math.floor(this.wide / 90)));
    for (const v of xs)
      parts.push(svg("text", { x: sx(v), y: HIGH - 4, "text-anchor": "middle" }, tickText(v, xStep)));
    this.axes.replaceChildren(...parts);
  }

  /** Few ranks: a coloured line each. Many: bundles of pale lines, and the focused one over them. */
  draw_(lines, sx, sy) {
    const wanted = new Map();
    const few = lines.size <= 8;
    const focused = this.view.rank;
    if (few) for (const [rank, line] of lines) wanted.set(rank, trace(line, sx, sy));
    else {
      const bundles = Array(8).fill("");
      for (const [rank, line] of lines) bundles[rank % 8] += trace(line, sx, sy);
      bundles.forEach((path, i) => wanted.set(`many ${i}`, path));
      if (lines.has(focused)) wanted.set(focused, trace(lines.get(focused), sx, sy));
    }
    for (const [key, path] of this.paths) {
      if (wanted.has(key)) continue;
      path.remove();
      this.paths.delete(key);
    }
    for (const [key, d] of wanted) {
      let path = this.paths.get(key);
      if (!path) {
        path = typeof key === "string" ? svg("path", { class: "xn-many" }) : svg("path", { class: "xn-trace", "data-rank": key });
        if (typeof key === "number") path.style.setProperty("--xn-hue", hue(key));
        this.paths.set(key, path);
        this.plot.append(path);
      }
      mark(path, "d", d);
      path.classList.toggle("xn-lit", key === focused);
      path.classList.toggle("xn-pale", few && focused !== undefined && lines.has(focused) && key !== focused);
    }
    this.name_(few ? lines : new Map([...lines].filter(([rank]) => rank === focused)), sx, sy);
  }

  /** The number of the rank at the end of its line: colour is not all that tells them apart. */
  name_(lines, sx, sy) {
    const ends = [];
    for (const [rank, { x, y }] of lines) {
      const i = y.findLastIndex((v) => !Number.isNaN(v));
      if (i >= 0) ends.push({ rank, x: sx(x[i]), y: sy(y[i]) });
    }
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, i) => {
      if (i) end.y = Math.max(end.y, ends[i - 1].y + 10);
    });
    const over = ends.length ? ends.at(-1).y - (HIGH - PAD_BOTTOM + 4) : 0;
    if (over > 0) for (let i = ends.length - 1, most = HIGH - PAD_BOTTOM + 4; i >= 0; i--, most -= 10) ends[i].y = Math.min(ends[i].y, most);
    while (this.ends.childNodes.length > ends.length) this.ends.lastChild.remove();
    ends.forEach(({ rank, x, y }, i) => {
      const text = this.ends.childNodes[i] ?? this.ends.appendChild(svg("text"));
      mark(text, "x", String(Math.round(x + 5)));
      mark(text, "y", String(Math.round(y + 3.5)));
      text.style.setProperty("--xn-hue", hue(rank));
      put(text, String(rank));
    });
  }

  /** The legend shows the last values, or those under the pointer. */
  read(lines, x, sx) {
    const values = new Map();
    let step = null;
    for (const [rank, line] of [...lines].sort(([a], [b]) => a - b)) {
      if (!line.x.length) continue;
      const i = x === null ? line.x.length - 1 : nearest(line.x, x);
      values.set(rank, line.y[i]);
      if (x !== null && (step === null || Math.abs(line.x[i] - x) < Math.abs(step - x))) step = line.x[i];
    }
    put(this.at, step === null ? "last" : `step ${figure(step)}`);
    this.cross.style.display = step === null ? "none" : "";
    if (step !== null) {
      for (const name of ["x1", "x2"]) mark(this.cross, name, String(sx(step)));
      mark(this.cross, "y1", String(PAD_TOP));
      mark(this.cross, "y2", String(HIGH - PAD_BOTTOM));
    }
    const rows = lines.size <= 8 ? [...values] : this.summary(values);
    this.items_(rows);
    mark(this.svg, "aria-label", `${string(this.name)}: ${rows.map(([k, v]) => `${typeof k === "number" ? "rank " : ""}${k} ${figure(v)}`).join(", ")}`);
  }

  summary(values) {
    const sorted = [...values.values()].filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
    const { rank } = this.view;
    const rows = [["min", sorted[0]], ["median", sorted[sorted.length >> 1]], ["max", sorted.at(-1)]];
    if (values.has(rank)) rows.unshift([rank, values.get(rank)]);
    return rows;
  }

  items_(rows) {
    const keys = rows.map(([key]) => key).join();
    if (keys !== this.keys) {
      this.keys = keys;
      this.items.clear();
      for (const [key] of rows) {
        const value = h("b");
        const node = h("span", { "data-legend": key, class: typeof key === "number" ? "xn-item xn-coloured" : "xn-item" },
          h("span", { class: "xn-key" }, typeof key === "number" ? `rank ${key}` : key), value);
        if (typeof key === "number") node.style.setProperty("--xn-hue", hue(key));
        this.items.set(key, { node, value });
      }
      this.legend.replaceChildren(...[...this.items.values()].map(({ node }) => node));
    }
    for (const [key, value] of rows) put(this.items.get(key).value, figure(value));
  }
}

class Figures {
  constructor(view) {
    this.view = view;
    this.charts = new Map();
    this.grid = div("figures-grid");
    this.node = h("section", { class: "xn-figures", role: "region", "aria-label": "Figures", hidden: "" }, this.grid);
    this.sizes = new ResizeObserver(() => view.changed(["figures"], true));
    this.sizes.observe(this.grid);
  }

  get every() {
    const most = Math.max(0, ...[...this.view.store.figures.values()].map(({ lines }) => lines.size));
    return most > 32 ? 500 : 150;
  }

  draw() {
    const { figures } = this.view.store;
    show(this.node, figures.size > 0);
    for (const [name, chart] of this.charts) {
      if (figures.has(name)) continue;
      chart.node.remove();
      this.charts.delete(name);
    }
    for (const name of figures.keys()) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(this.view, name);
      this.charts.set(name, chart);
      this.grid.append(chart.node);
    }
    // Read all widths before anything is written.
    const widths = new Map([...this.charts].map(([name, chart]) => [name, chart.svg.clientWidth]));
    for (const [name, chart] of this.charts) if (widths.get(name)) chart.draw(figures.get(name), widths.get(name));
  }

  close() {
    this.sizes.disconnect();
  }
}

// --- output --------------------------------------------------------------------------------------

class Output {
  every = 0;

  constructor(view) {
    this.view = view;
    this.stream = "both";
    this.needle = "";
    this.drawnId = -1;
    this.rows = null; // while held: all lines that match; the page has those from `from` to `to`
    this.whose = h("select", { class: "xn-select", "aria-label": "Ranks shown", change: () => this.choose() });
    this.streams = h(
      "select", { class: "xn-select", "aria-label": "Stream", change: () => this.choose() },
      h("option", { value: "both" }, "stdout + stderr"), h("option", { value: "out" }, "stdout"), h("option", { value: "err" }, "stderr"),
    );
    this.filter = h("input", {
      class: "xn-filter", type: "search", "aria-label": "Filter output", placeholder: "Filter output", spellcheck: "false",
      input: () => this.choose(), keydown: (event) => this.filterKey(event),
    });
    this.matches = h("span", { class: "xn-matches", role: "status" });
    this.follow = button("Follow", { "data-action": "follow", "aria-pressed": "true" }, () => (this.rows ? this.resume() : this.hold(false)));
    this.copy = button("Copy", { "aria-label": "Copy output", "data-action": "copy" }, () => this.copyLines());
    this.top = div("top");
    this.body = div("rows");
    this.log = h("div", {
      class: "xn-log", role: "log", "aria-label": "Output", "aria-live": "off", tabindex: 0, "data-follow": "true",
      scroll: () => this.scrolled(), wheel: (event) => event.deltaY < 0 && !this.rows && this.canScroll() && this.hold(true),
      keydown: (event) => this.key(event),
    }, this.top, this.body);
    this.jump = button("Jump to the end", { class: "xn-button xn-jump", hidden: "", "aria-label": "Jump to the end" }, () => this.resume());
    this.path = h("code", { class: "xn-path" });
    this.foot = div("foot", span("quiet", "Full output"), this.path,
      button("Copy path", { class: "xn-link" }, (event) => this.copyPath(event)));
    this.node = h(
      "section", { class: "xn-output", role: "region", "aria-label": "Output" },
      div("bar-head", h("h4", { class: "xn-h" }, "Output"), this.whose, this.streams, this.filter, this.matches, span("space"), this.follow, this.copy),
      div("screen", this.log, this.jump), this.foot,
    );
    this.earlier = button("Earlier output", { class: "xn-link" }, () => this.fetch());
    this.words = h("span", { class: "xn-quiet", role: "status" });
    this.top.append(this.earlier, this.words);
    this.resetTop();
  }

  get lines() {
    return this.view.store.lines;
  }

  get rank() {
    return this.view.rank;
  }

  matching = (line) => {
    if (this.stream !== "both" && line.stream !== this.stream) return false;
    if (!this.needle) return true;
    return line.gap === 0 && plain(line.text).toLowerCase().includes(this.needle);
  };

  // choices

  choose() {
    const stream = this.streams.value;
    const needle = this.filter.value.trim().toLowerCase();
    const { value } = this.whose;
    const rank = value === "all" || value === "" ? undefined : value === "job" ? null : Number(value);
    if (rank !== this.rank) this.view.focus(rank);
    if (stream === this.stream && needle === this.needle) return;
    [this.stream, this.needle] = [stream, needle];
    this.refresh();
  }

  refresh() {
    this.counted = -Infinity;
    this.rows = null;
    this.drawnId = -1;
    this.clear = true;
    this.resetTop();
    this.view.changed(["output"]);
  }

  filterKey(event) {
    event.stopPropagation();
    if (event.key !== "Escape" || !this.filter.value) return;
    this.filter.value = "";
    this.choose();
    event.preventDefault();
  }

  key(event) {
    if (event.key === "Escape" && this.rank !== undefined) this.view.focus(undefined);
    else if (event.key === "End" && this.rows) this.resume();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The choices of whose output: those ranks of which something is known. */
  options() {
    const ranks = [...this.view.store.cards.keys()].sort((a, b) => a - b);
    const job = this.lines.byRank.has(null);
    const key = `${job} ${ranks.join()}`;
    if (key !== this.optionKey) {
      this.optionKey = key;
      const option = (value, text) => h("option", { value }, text);
      this.whose.replaceChildren(
        option("all", "All ranks"), ...(job ? [option("job", "The cell itself")] : []),
        ...ranks.map((rank) => option(rank, `Rank ${rank}`)),
      );
    }
    const value = this.rank === undefined ? "all" : String(this.rank ?? "job");
    if (this.whose.value !== value) this.whose.value = value;
  }

  // drawing

  draw(now) {
    this.options();
    this.locate();
    if (this.clear) {
      this.clear = false;
      this.body.replaceChildren();
    }
    if (this.rows) this.shift();
    else this.append();
    this.count(now);
    const held = Boolean(this.rows);
    mark(this.log, "data-follow", String(!held));
    mark(this.log, "data-scope", this.rank === undefined ? "all" : "one");
    mark(this.follow, "aria-pressed", String(!held));
    show(this.jump, held);
    if (held) {
      const fresh = this.lines.total(this.rank) - this.heldAt;
      put(this.jump, fresh > 0 ? `Jump to the end · ${plural(fresh, "new line")}` : "Jump to the end");
    }
    show(this.earlier, this.rank !== undefined && !this.exhausted);
    // Last: it makes the browser lay out the page.
    if (!held) this.log.scrollTop = 1e9;
  }

  append() {
    const fresh = this.lines.since(this.rank, this.drawnId, this.matching, ROWS_LIVE);
    this.drawnId = this.lines.next - 1;
    if (!fresh.length) return;
    const over = this.body.childNodes.length + fresh.length - ROWS_LIVE;
    if (over >= this.body.childNodes.length) this.body.replaceChildren();
    else for (let i = 0; i < over; i++) this.body.firstChild.remove();
    this.body.append(...fresh.map((line) => this.row(line)));
  }

  row(line) {
    const name = line.rank === null ? "cell" : String(line.rank);
    const tag = h("span", { class: "xn-tag" }, name);
    tag.style.setProperty("--xn-hue", hue(line.rank));
    const text = span("text");
    const row = h("div", { class: "xn-row", "data-rank": line.rank ?? "job", "data-stream": line.stream }, tag);
    if (line.stream === "err") row.append(h("span", { class: "xn-err", title: "stderr" }, "err"));
    if (line.gap) {
      row.classList.add("xn-gap");
      const words = `… ${plural(line.gap, "line")} not shown, in ${this.file(line.rank, line.stream)}`;
      text.append(this.rank === undefined ? words : button(words, { class: "xn-link" }, () => this.fill(line)));
    } else ansi(text, line.text, this.needle);
    row.append(text);
    return row;
  }

  file(rank, stream) {
    return rank === null ? `job.${stream}` : `rank-${rank}.${stream}`;
  }

  locate() {
    const { record } = this.view.store.about;
    const stream = this.stream === "both" ? "out" : this.stream;
    show(this.foot, Boolean(record));
    put(this.path, this.rank === undefined ? record : `${record}/${this.file(this.rank, stream)}`);
  }

  count(now) {
    show(this.matches, Boolean(this.needle));
    if (!this.needle || now - this.counted < 400) return;
    this.counted = now;
    const found = this.rows ?? this.lines.since(this.rank, -1, this.matching, Infinity);
    put(this.matches, `${plural(found.length, "match").replace("matchs", "matches")}`);
  }

  // holding: the page shows a window of `rows`, which does not move

  canScroll() {
    return this.log.scrollHeight > this.log.clientHeight;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    const below = scrollHeight - scrollTop - clientHeight;
    const up = scrollTop < (this.scrollTop ?? 0);
    this.scrollTop = scrollTop;
    if (!this.rows) {
      if (up && below > 24) this.hold(true);
      return;
    }
    if (scrollTop < 200 && (this.from > 0 || (up && scrollTop < 40))) this.move = -1;
    else if (below < 200 && this.to < this.rows.length) this.move = 1;
    else if (below < 2 && !up && this.auto) return this.resume();
    else return;
    this.view.changed(["output"]);
  }

  hold(auto) {
    const all = this.lines.since(this.rank, -1, (line) => line.id <= this.drawnId, Infinity);
    this.all = all;
    this.auto = auto;
    this.rows = all.filter(this.matching);
    this.to = this.rows.length;
    this.from = Math.max(0, this.to - this.body.childNodes.length);
    this.heldAt = this.lines.total(this.rank);
    this.move = -1;
    this.view.changed(["output"]);
  }

  resume() {
    this.refresh();
    this.scrollTop = 0;
  }

  /** Moves the window a part up or down; the lines in sight stay where they are. */
  shift() {
    const { move } = this;
    this.move = 0;
    if (!move) return;
    if (move < 0 && this.from > 0) this.grow(Math.max(0, this.from - ROWS / 2), this.to);
    else if (move < 0 && this.rank !== undefined && !this.needle && this.log.scrollTop < 40) this.fetch();
    else if (move > 0) this.grow(this.from, Math.min(this.rows.length, this.to + ROWS / 2));
  }

  grow(from, to) {
    const { log, body } = this;
    const nodes = body.childNodes;
    if (from < this.from) {
      const [top, high] = [log.scrollTop, log.scrollHeight];
      body.prepend(...this.rows.slice(from, this.from).map((line) => this.row(line)));
      log.scrollTop = top + log.scrollHeight - high;
      while (nodes.length > ROWS) {
        body.lastChild.remove();
        to--;
      }
    } else {
      body.append(...this.rows.slice(this.to, to).map((line) => this.row(line)));
      const [top, high] = [log.scrollTop, log.scrollHeight];
      while (nodes.length > ROWS) {
        body.firstChild.remove();
        from++;
      }
      log.scrollTop = top + log.scrollHeight - high;
    }
    [this.from, this.to] = [from, to];
    this.scrollTop = log.scrollTop;
  }

  // earlier lines, from the record

  resetTop() {
    this.fetching = false;
    this.exhausted = false;
    put(this.words, "");
  }

  /** Asks for the lines before the first one here. */
  fetch() {
    if (this.fetching || this.exhausted || this.rank === undefined) return;
    if (!this.rows) this.hold(false);
    const streams = this.stream === "both" ? ["out", "err"] : [this.stream];
    for (const stream of streams) {
      const first = this.all.find((line) => line.stream === stream);
      const before = first ? first.at : Number.MAX_SAFE_INTEGER;
      if (before === 0 || this.done?.has(`${this.rank} ${stream}`)) continue;
      if (!first && stream === "err" && !this.lines.last.has(`${this.rank} err`) && this.all.length) continue;
      return this.request(stream, before, null);
    }
    this.exhausted = true;
    put(this.words, "The beginning of the output.");
    this.view.changed(["output"]);
  }

  fill(gap) {
    if (!this.rows) this.hold(false);
    this.request(gap.stream, gap.at, gap);
  }

  request(stream, before, gap) {
    const { rows } = this;
    const all = this.all;
    this.fetching = true;
    put(this.words, "Fetching…");
    const answered = (lines, first) => {
      this.fetching = false;
      if (this.all !== all) return;
      if (first && !gap) (this.done = this.done ?? new Set()).add(`${this.rank} ${stream}`);
      put(this.words, "");
      this.insert(gap ? lines.slice(-gap.gap) : lines, gap);
    };
    const silent = () => {
      if (this.all !== all) return;
      this.fetching = false;
      put(this.words, "The kernel does not answer while the cell runs; all of it is in the file below.");
    };
    this.view.store.earlier(this.rank, stream, before, gap ? 500 : 250, answered, silent);
    return rows;
  }

  /** Puts fetched lines before the first one, or where a gap was. */
  insert(lines, gap) {
    const at = gap ? this.all.indexOf(gap) : 0;
    if (at < 0) return;
    const rest = gap ? gap.gap - lines.length : 0;
    const marker = rest > 0 && lines.length ? [{ ...gap, gap: rest, at: lines[0].at }] : [];
    if (gap && !lines.length) return put(this.words, "Those lines could not be found.");
    this.all.splice(at, gap ? 1 : 0, ...marker, ...lines);
    // What was fetched is bounded too: the newest go, they are a jump away.
    if (this.all.length > FETCHED) this.all.length = FETCHED;
    const seen = this.rows[this.from];
    const last = this.rows[this.to - 1];
    this.rows = this.all.filter(this.matching);
    if (gap) this.redraw(seen === gap ? (marker[0] ?? lines[0]) : seen, gap);
    else {
      const shifted = Math.max(0, this.rows.indexOf(seen));
      [this.from, this.to] = [shifted, Math.max(shifted, this.rows.indexOf(last) + 1 || this.rows.length)];
      this.trimBody();
      this.grow(0, this.to);
    }
    this.view.changed(["output"]);
  }

  trimBody() {
    while (this.body.childNodes.length > this.to - this.from) this.body.lastChild.remove();
  }

  /** After a gap was filled: the same first row, and the lines in sight where they were. */
  redraw(first, gap) {
    const { log, body } = this;
    const index = [...body.childNodes].findIndex((row) => row.classList.contains("xn-gap") && row.contains(document.activeElement));
    const below = body.childNodes[index + 1];
    const anchor = below ? below.offsetTop - log.scrollTop : 0;
    this.from = Math.max(0, this.rows.indexOf(first));
    this.to = Math.min(this.rows.length, this.from + ROWS);
    const shown = this.rows.slice(this.from, this.to);
    body.replaceChildren(...shown.map((line) => this.row(line)));
    const next = shown.findIndex((line) => line.id === gap.id + 1);
    if (below && next >= 0) log.scrollTop = body.childNodes[next].offsetTop - anchor;
    this.scrollTop = log.scrollTop;
  }

  // copying

  copyLines() {
    const rows = this.rows?.slice(-ROWS) ?? this.lines.since(this.rank, -1, this.matching, ROWS);
    const lines = rows.filter((line) => !line.gap);
    const tag = (line) => (this.rank === undefined ? `[${line.rank ?? "cell"}] ` : "");
    copy(lines.map((line) => tag(line) + plain(line.text)).join("\n"));
    this.said(this.copy, `Copied ${plural(lines.length, "line")}`, "Copy");
  }

  copyPath({ currentTarget }) {
    copy(this.path.textContent);
    this.said(currentTarget, "Copied", "Copy path");
  }

  said(node, text, back) {
    put(node, text);
    setTimeout(() => put(node, back), 1500);
  }
}

// --- a view --------------------------------------------------------------------------------------

class View {
  constructor(store, el) {
    this.store = store;
    this.rank = undefined; // whose output is shown: undefined all, null the cell itself
    this.root = h("div", {
      class: "xn-panel", role: "region", "aria-label": `Run ${store.run}`, "data-run": store.run,
      // Keys pressed in here are not for the notebook's own shortcuts.
      "data-lm-suppress-shortcuts": "true",
      keydown: (event) => event.stopPropagation(),
    });
    this.parts = {
      head: new Head(this), troubles: new Troubles(this), stacks: new Stacks(this),
      ranks: new Ranks(this), figures: new Figures(this), output: new Output(this),
    };
    this.root.append(...Object.values(this.parts).map((part) => part.node));
    // For tests: what is held, and whether all of it was drawn.
    this.root.xnb = {
      lines: () => store.lines.held,
      points: () => points(store),
      drawn: () => !this.dirty.size && !this.frame,
    };
    this.dirty = new Set(Object.keys(this.parts));
    this.inSight = true;
    this.drawn = new Map();
    this.frame = 0;
    this.watch = new IntersectionObserver((entries) => {
      this.inSight = entries.at(-1).isIntersecting;
      this.schedule();
    });
    this.watch.observe(this.root);
    this.wake = () => this.schedule();
    document.addEventListener("visibilitychange", this.wake);
    this.clock = setInterval(() => this.tick(), 1000);
    store.views.add(this);
    el.append(this.root);
    this.shade();
    this.schedule();
  }

  close() {
    this.store.views.delete(this);
    this.watch.disconnect();
    this.parts.figures.close();
    document.removeEventListener("visibilitychange", this.wake);
    clearInterval(this.clock);
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }

  /** Parts to draw in the next frame; `now`: without waiting for their turn. */
  changed(parts, now = false) {
    for (const part of parts) {
      this.dirty.add(part);
      if (now) this.drawn.delete(part);
      if (part === "stacks") this.dirty.add("head");
    }
    this.schedule();
  }

  schedule() {
    if (this.frame || !this.dirty.size || !this.inSight || document.hidden) return;
    this.frame = requestAnimationFrame((now) => this.flush(now));
  }

  flush(now) {
    this.frame = 0;
    if (!this.inSight || document.hidden) return;
    for (const name in this.parts) {
      const part = this.parts[name];
      if (!this.dirty.has(name) || now - (this.drawn.get(name) ?? -Infinity) < part.every) continue;
      this.dirty.delete(name);
      this.drawn.set(name, now);
      part.draw(now);
    }
    mark(this.root, "data-seq", String(this.store.seq ?? ""));
    this.schedule();
  }

  tick() {
    if (!this.inSight || document.hidden) return;
    this.shade();
    if (this.store.over) return;
    this.parts.head.tick();
    this.parts.ranks.tick();
  }

  /** Whether what lies behind the panel is dark: every front end says it in another way. */
  shade() {
    let node = this.root.parentElement;
    let rgb = null;
    for (; node && !rgb; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number);
      if (found && (found[3] ?? 1) > 0.5) rgb = found;
    }
    const dark = rgb ? 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 128 : false;
    mark(this.root, "data-dark", String(dark));
  }

  /** Show one rank's output, or that of all. */
  focus(rank, reveal = false) {
    this.store.focus(this, rank);
    this.parts.output.refresh();
    this.changed(["ranks", "figures"], true);
    if (reveal) this.parts.output.node.scrollIntoView({ block: "nearest" });
  }
}

function points(store) {
  let sum = 0;
  for (const { lines } of store.figures.values()) for (const { x } of lines.values()) sum += x.length;
  return sum;
}

// anywidget calls this once for each model, so that its views share one store.
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
