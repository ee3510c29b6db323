// One chart: a figure's line of each rank, with axes, legend and the values under the pointer.

const [LEFT, RIGHT, TOP, BOTTOM, HIGH] = [80, 22, 6, 18, 96]; // of a chart, in pixels
const [PAIR, EACH] = [2, 64]; // so many ranks have a line each unasked, and on request
const LABELS = 8; // ends of lines that have room for a number

class Chart {
	axes = svg("g.axes");
	plot = svg("g.lines", { fill: "none" });
	ends = svg("g.ends");
	odd = svg("path.odd");
	cross = svg("line.cross", { y1: TOP, y2: HIGH - BOTTOM });
	at = span("quiet.at");
	legend = div("legend");
	paths = new Map();

	constructor(view, name, timed = false) {
		this.view = view;
		this.timed = timed;
		this.name = plain(name);
		const point = (x) => {
			this.pointer = x;
			view.redraw("figures");
		};
		const about = {
			...{ height: HIGH, role: "img" },
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
		this.svg = svg("svg.plot", about, this.axes, this.plot, this.odd, this.ends, this.cross);
		const caption = h("figcaption.caption", {}, h("strong", {}, this.name), this.at);
		this.node = h("figure.figure", { "data-figure": name }, caption, this.svg, this.legend);
	}

	draw(lines) {
		const wide = this.svg.clientWidth;
		this.wide = wide;
		if (!wide) return;
		const { log, smooth } = this.view.charting;
		const height = log ? Math.log10 : Number;
		this.hides = false; // whether a logarithmic axis has no place for some of the values
		const drawn = (y) => {
			const fits = isFinite(height(y));
			this.hides ||= !fits && !isNaN(y);
			return fits ? y : NaN;
		};
		const own = new Map([...lines].map(([rank, { x, y, t }]) => {
			const ys = y.map((y) => (isFinite(y) ? y : NaN));
			return [rank, { x: this.overTime ? t : x, y: (smooth ? smoothed(ys, smooth) : ys).map(drawn) }];
		}));
		const xs = [...own.values()].map(({ x }) => x);
		let [x0, x1] = reach(xs);
		this.least = Number(!this.overTime && xs.flat().every(Number.isInteger)); // between ticks
		let [y0, y1] = reach([...own.values()].map(({ y }) => y)).map(height);
		this.blank = !(y0 <= y1);
		if (this.blank) [y0, y1] = [0, 1];
		if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
		const margin = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
		[y0, y1] = [y0 - margin, y1 + margin];
		const across = (wide - LEFT - RIGHT) / (x1 - x0);
		const sx = (x) => LEFT + (x - x0) * across;
		const sy = (y) => HIGH - BOTTOM - ((height(y) - y0) / (y1 - y0)) * (HIGH - TOP - BOTTOM);
		mark(this.svg, "viewBox", `0 0 ${wide} ${HIGH}`);
		this.drawAxes([x0, x1], [y0, y1], sx, sy);
		this.drawLines(own, sx, sy, [x0, x1]);
		this.drawOdd(lines, own, sx);
		const pointed = this.pointer === undefined ? null : x0 + (this.pointer - LEFT) / across;
		this.read(lines, own, pointed, sx);
	}

	/** Whether x is seconds since the start of the run, rather than steps. */
	get overTime() {
		return this.timed || this.view.charting.time;
	}

	drawAxes(across, up, sx, sy) {
		const { log } = this.view.charting;
		fill(this.axes, `${across} ${up} ${this.wide} ${log} ${this.overTime} ${this.blank} ${this.least}`, () => {
			const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor, ...(words[10] && { textLength: 72 }) }, words); // long ones narrower
			const unit = this.overTime ? " s" : "";
			const xs = labels(...across, Math.max(2, Math.floor(this.wide / 90)), this.least);
			const ys = this.blank ? [] : log ? logLabels(...up) : labels(...up, 4);
			const below = xs.map(([value, words]) => text(sx(value), HIGH - 4, "middle", words + unit));
			const beside = ys.flatMap(([value, words]) => {
				const y = Math.round(sy(value)) + 0.5;
				const line = svg("line", { x1: LEFT, x2: this.wide - RIGHT, y1: y, y2: y });
				return [line, text(LEFT - 6, y + 4, "end", words)];
			});
			return [...beside, ...below];
		});
	}

	/** One or two ranks: a colored line each. More: their mean in a band. */
	drawLines(lines, sx, sy, ends) {
		const focused = this.view.rank;
		const many = this.isMany(lines);
		const named = new Map([...lines].filter(([rank]) => !many || rank === focused));
		const wanted = new Map();
		const runs = (rank) => !OVER.has(this.view.store.cards.get(rank)?.phase);
		this.end = this.isSummed(lines) ? reached(lines, ends, runs) : ends[1];
		if (many) {
			const pieces = bundle(lines, [ends[0], this.end], Math.max(60, Math.min(300, this.wide >> 1)));
			const path = (x, y) => trace({ x, y }, sx, sy);
			const around = ({ x, low, high }) => `${path(x, high)}${path(x.toReversed(), low.toReversed()).replace("M", "L")}Z`;
			wanted.set("band", pieces.map(around).join(""));
			wanted.set("mean", pieces.map(({ x, mean }) => path(x, mean)).join(""));
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

	/** Marks where lines became no finite number. */
	drawOdd(lines, own, sx) {
		const at = ([rank, { y }]) => own.get(rank).x.filter((_, i) => !isFinite(y[i]) && isFinite(y[i - 1] ?? 0));
		mark(this.odd, "d", [...lines].flatMap(at).map((x) => `M${sx(x)} 0v${HIGH - BOTTOM}`).join(""));
	}

	isMany(lines) {
		return lines.size > (this.view.charting.each ? EACH : PAIR);
	}

	/** Whether the legend says what they have together. */
	isSummed(lines) {
		return this.isMany(lines) || lines.size > LABELS;
	}

	/** The rank's number at the end of its line: color alone does not tell lines apart. */
	drawEnds(lines, sx, sy) {
		const ends = [];
		for (const [rank, { x, y }] of lines) {
			const i = y.findLastIndex((v) => !isNaN(v));
			if (i >= 0) ends.push({ rank, x: sx(x[i]), y: sy(y[i]) });
		}
		if (ends.length > LABELS) ends.length = 0;
		ends.sort((a, b) => a.y - b.y);
		let below = TOP - 6;
		const texts = ends.map(({ rank, x, y }, i) => {
			below = Math.min(Math.max(y, below + 10), HIGH - BOTTOM + 14 - 10 * (ends.length - i));
			return tint(svg("text", { x: Math.round(x + 5), y: Math.round(below + 3.5) }, rank), rank);
		});
		this.ends.replaceChildren(...texts);
	}

	/** The legend: the values under the pointer, or the last ones; of many, those that the mean there is of. */
	read(lines, own, x, sx) {
		const values = new Map();
		const hides = this.hides && "without values ≤ 0";
		const smooth = this.view.charting.smooth && "smoothed";
		const [ended, reached] = [new Set(), Math.min(x ?? this.end, this.end)];
		let at = null;
		for (const [rank, { y }] of [...lines].sort(([a], [b]) => a - b)) {
			const xs = own.get(rank).x;
			if (xs.at(-1) < reached - 1e-6) ended.add(rank);
			const i = nearest(xs, x ?? Math.min(xs.at(-1), this.end));
			values.set(rank, y[i]);
			if (x !== null && (at === null || Math.abs(xs[i] - x) < Math.abs(at - x))) at = xs[i];
		}
		put(this.at, joined(hides, smooth, at === null ? "last" : this.overTime ? `at ${duration(at)}` : `step ${figure(at)}`));
		mark(this.cross, "visibility", at === null ? "hidden" : null);
		if (at !== null) for (const name of ["x1", "x2"]) mark(this.cross, name, sx(at));
		const rows = this.isSummed(lines) ? this.summary(values, ended) : [...values].map(([rank, value]) => [rank, `rank ${rank}`, figure(value)]);
		mark(this.svg, "aria-label", `${this.name}: ${rows.map(([, ...words]) => words.join(" ")).join(", ")}`);
		fill(this.legend, String(rows), () => rows.map(([key, name, value]) => {
			const label = typeof key === "number" ? tint(span("key.one", name), key) : span("key", name);
			return h("span", { "data-legend": key }, label, h("b", {}, value));
		}));
	}

	summary(values, ended) {
		const sorted = [...values].filter(([rank, value]) => isFinite(value) && !ended.has(rank)).sort(([, a], [, b]) => a - b);
		const odd = [...values].filter(([, v]) => !isFinite(v)).map(([rank]) => rank);
		const bad = odd.length ? [["odd", "not finite", ranksOf(odd)]] : [];
		if (!sorted.length) return bad;
		const mean = sorted.reduce((sum, [, value]) => sum + value, 0) / sorted.length;
		const [low, high] = [sorted[0], sorted.at(-1)];
		const ends = [["min", low], ["max", high]].filter(() => figure(low[1]) !== figure(high[1])).map(([key, [rank, value]]) => [key, key, `${figure(value)} (rank ${rank})`]);
		const { rank } = this.view;
		const own = values.has(rank) ? [[rank, `rank ${rank}`, figure(values.get(rank))]] : [];
		const of = sorted.length < values.size ? `mean of ${plural(sorted.length, "rank")}` : "mean";
		return [...own, ["mean", of, figure(mean)], ...ends, ...bad];
	}
}
