// Equal lines of several ranks as one row of output.

const FOLDS = 200; // rows of output that an equal line of another rank may join

/** Rows of output. A line joins an equal one of another rank where it stays behind those that came
 * before it. */
class Folds {
	rows = new Map(); // by stream and text: the newest row
	last = new Map(); // by rank: the number of the row of its last line
	next = 0;

	/** The row that a line joins; null if it needs one of its own, which `add` tells. */
	join({ rank, stream, gap, html }) {
		const row = gap ? undefined : this.rows.get(`${stream} ${html}`);
		const near = row && row.at > this.next - FOLDS && row.at > (this.last.get(rank) ?? -1);
		if (!near) return null;
		this.last.set(rank, row.at);
		row.ranks.add(rank);
		return row;
	}

	add({ rank, stream, gap, html }, node) {
		const row = { at: this.next++, ranks: new Set([rank]), node };
		this.last.set(rank, row.at);
		if (!gap) this.rows.set(`${stream} ${html}`, row);
		if (this.rows.size > 2 * FOLDS) for (const [key, { at }] of this.rows) if (at <= this.next - FOLDS) this.rows.delete(key);
	}
}
