// Output: the ranks' lines as they come, earlier ones on request, filtered, copied.

const ROWS = 1000; // lines in the page while scrolled up,
const ROWS_LIVE = 100; // and while following: more would cost frames

/** The file of a rank's output, or the cell's own. */
const file = (rank, stream) => (rank === null ? `job.${stream}` : `rank-${rank}.${stream}`);

class Output {
	stream = "both";
	needle = "";

	constructor(view) {
		this.view = view;
		this.lines = view.store.lines;
		const choose = () => this.choose();
		this.title = span("words");
		const streams = [["both", "stdout + stderr"], ["out", "stdout"], ["err", "stderr"]];
		this.streams = h("select.select", { label: "Stream", change: choose }, ...streams.map(option));
		this.filter = search("Filter output", choose);
		this.matches = span("quiet.matches");
		const follow = () => (this.rows ? this.refresh() : this.hold(false));
		this.follow = button("Follow", follow);
		this.copy = button("Copy", () => this.copyLines(), { label: "Copy output" });
		this.earlier = link("Earlier output", () => this.goBack());
		this.words = span("quiet");
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
		this.path = button("Copy path", () => this.copied(this.path, this.path.title));
		const space = span("space");
		const head = div("bar-head", this.streams, this.filter, this.matches, space, this.follow, this.path, this.copy);
		this.node = folding(section("output", "Output", head, this.log), "output", this.title, head);
		this.refresh();
	}

	// Output belongs to a process, not to a device.
	get rank() {
		return this.view.store.about.unit === "device" ? undefined : this.view.rank;
	}

	matching = (line) => {
		if (this.stream !== "both" && line.stream !== this.stream) return false;
		return !this.needle || (!line.gap && (line.low ??= textOf(line).toLowerCase()).includes(this.needle));
	};

	choose() {
		this.stream = this.streams.value;
		this.needle = this.filter.value.trim().toLowerCase();
		this.refresh();
	}

	/** Shows the newest lines, and follows them. */
	refresh() {
		this.rows = null; // the lines in the page while it does not follow
		this.drawn = -1; // the newest line in the page
		this.folds = new Folds();
		this.clear = true;
		this.before = {}; // by stream: where the earliest fetched line starts
		this.busy = false;
		this.asking = null;
		this.first = false; // whether the page shows the first line
		put(this.words, "");
		this.view.changed("output");
	}

	draw() {
		const { rank } = this;
		const { record } = this.view.store.about;
		const one = rank !== undefined;
		const held = Boolean(this.rows);
		show(this.node, this.lines.next); // nothing is to be controlled of none
		put(this.title, one ? `Output of rank ${rank}` : "Output");
		if (this.clear) {
			this.body.replaceChildren();
			mark(this.log, "data-full", null);
		}
		this.clear = false;
		if (!held) this.append();
		// It grows with its lines, up to a height from which new ones no longer move the page.
		if (!this.log.dataset.full && this.body.childNodes.length && this.log.scrollHeight > this.log.clientHeight) mark(this.log, "data-full", true);
		show(this.matches, this.needle);
		if (this.needle) put(this.matches, plural(this.lines.since(rank, -1, this.matching, Infinity).length, "hit"));
		mark(this.log, "data-follow", !held);
		mark(this.log, "data-scope", one ? "one" : "all");
		mark(this.follow, "aria-pressed", !held);
		const fresh = held ? this.lines.total(rank) - this.heldAt : 0;
		put(this.follow, joined("Follow", fresh > 0 && `${count(fresh)} new`));
		const more = !this.lines.whole(rank) || this.body.childNodes.length >= ROWS_LIVE;
		show(this.earlier, one && !this.first && more);
		show(this.path, record);
		this.path.title = one ? `${record}/${file(rank, this.stream === "err" ? "err" : "out")}` : record;
		// Last, as it makes the browser lay out the page.
		if (!held) this.log.scrollTop = 1e9;
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
			} else {
				const node = this.row(line);
				folds.add(line, node);
				nodes.push(node);
			}
		}
		return nodes;
	}

	row({ id, rank, stream, gap, html }) {
		const tag = span("tag", rank ?? "cell");
		const words = span("text");
		if (gap) words.append(`… ${plural(gap, "line")} not shown, in ${file(rank, stream)}`);
		else words.innerHTML = html;
		const err = stream === "err" ? h("span.err", { title: "stderr" }, "err") : "";
		const node = h(gap ? "div.row.gap" : "div.row", { "data-rank": rank ?? "job", "data-stream": stream }, tag, err, words);
		node.xnId = id; // of its first line
		return node;
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
			put(this.words, "No answer yet. The file has all output.");
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
		const text = lines.map((line) => tag(line.rank) + textOf(line)).join("\n");
		this.copied(this.copy, text, ` ${plural(lines.length, "line")}`);
	}

	copied(node, text, what = "") {
		copy(text);
		node.xnLabel ??= node.textContent;
		put(node, `Copied${what}`);
		setTimeout(() => put(node, node.xnLabel), 1500);
	}
}
