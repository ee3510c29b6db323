// The lines of output that the page holds, bounded.

const HELD = 8000; // lines held over all ranks,
const HELD_EACH = 30; // at least this many of each,
const HELD_FOCUSED = 2000; // and this many of a selected one

const SIGNS = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#x27;": "'" };

/** A line without its colors. */
const textOf = ({ html }) => html.replace(/<[^>]*>/g, "").replace(/&[^;]{2,4};/g, (sign) => SIGNS[sign] ?? sign);

/** The lines held, by rank (null is the cell itself), numbered in order of arrival. */
class Lines {
	byRank = new Map();
	received = new Map(); // number of lines by rank, with those not sent
	next = 0;
	ranks = 1;
	focused = new Set();

	cap(rank) {
		const fair = Math.max(HELD_EACH, Math.floor(HELD / this.ranks));
		return this.focused.has(rank) ? Math.max(HELD_FOCUSED, fair) : fair;
	}

	add({ rank, stream, start, skipped, lines, sizes }) {
		const all = held(this.byRank, rank, () => []);
		if (skipped > 0) all.push({ id: this.next++, rank, stream, at: start, gap: skipped, html: "" });
		all.push(...this.read({ rank, stream, start, lines, sizes }));
		all.splice(0, Math.max(0, all.length - this.cap(rank)));
		this.received.set(rank, this.total(rank) + skipped + lines.length);
	}

	/** Lines as HTML with their offsets in the file, exact unless Python replaced characters. */
	read({ rank, stream, start, lines, sizes }) {
		let at = start;
		return lines.map((line, i) => {
			const entry = { id: this.next++, rank, stream, at, gap: 0, html: line };
			at += sizes[i];
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

	/** Whether every line of a rank so far is held. */
	whole(rank) {
		const all = this.byRank.get(rank) ?? [];
		const starts = (stream) => !all.find((line) => line.stream === stream)?.at;
		return all.length === this.total(rank) && starts("out") && starts("err");
	}

	total(rank) {
		if (rank !== undefined) return this.received.get(rank) ?? 0;
		return [...this.received.values()].reduce((sum, n) => sum + n, 0);
	}
}
