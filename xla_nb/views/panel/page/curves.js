// Lines of a chart: smoothed, several as their mean and band, and as a path.

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

/** Up to where those in progress have reported. */
function reached(lines, [x0, x1], runs) {
	const all = [...lines].filter(([, { x }]) => x.length);
	const far = x0 + (all.some(([, { x }]) => x.length > 50) && 0.8 * (x1 - x0));
	return Math.min(x1, ...all.filter(([rank, { x }]) => runs(rank) && x.at(-1) >= far).map(([, { x }]) => x.at(-1)));
}

/** The steps of lines up to the last one; of more than so many places evenly spaced ones. */
function steps(lines, x0, last, places) {
	const found = new Set();
	for (const { x } of lines) if (found.size <= places) x.forEach((at) => found.add(at));
	const even = (_, k) => x0 + (k / places) * (last - x0);
	return found.size > places ? Array.from({ length: places + 1 }, even) : [...found].filter((x) => x <= last).sort((a, b) => a - b);
}

/** Mean, lowest and highest, in pieces: one ends where others have a number than before. */
function bundle(lines, [x0, last], places) {
	const all = [...lines.values()].filter(({ x }) => x.length).map((line) => ({ ...line, i: 0 }));
	const pieces = [];
	let before = "";
	for (const x of steps(all, x0, last, places)) {
		const found = [];
		let who = "";
		for (const [n, line] of all.entries()) {
			const { x: xs, y: ys } = line;
			while (line.i < xs.length - 1 && xs[line.i + 1] <= x) line.i++;
			const { i } = line;
			if (x < xs[0] - 1e-9 || x > xs.at(-1) + 1e-9) continue;
			const part = i < xs.length - 1 && (x - xs[i]) / (xs[i + 1] - xs[i]);
			const y = ys[i] + (part && part * (ys[i + 1] - ys[i]));
			if (isNaN(y)) continue;
			found.push(y);
			who += `${n} `;
		}
		if (who && who !== before) pieces.push({ x: [], mean: [], low: [], high: [] });
		before = who;
		if (!who) continue;
		const piece = pieces.at(-1);
		piece.x.push(x);
		piece.mean.push(found.reduce((a, b) => a + b) / found.length);
		piece.low.push(Math.min(...found));
		piece.high.push(Math.max(...found));
	}
	return pieces;
}

/** A path through the points, with only the extremes of each pixel column. */
function trace({ x, y }, sx, sy) {
	let path = "";
	let [pen, column, low, high] = ["M"];
	for (let i = 0; i < x.length; i++) {
		if (isNaN(y[i])) {
			[pen, column] = ["M"];
			continue;
		}
		const [px, py] = [Math.round(sx(x[i]) * 2) / 2, Math.round(sy(y[i]) * 10) / 10];
		if (px !== column) [column, low, high] = [px, py, py];
		else if (py >= low && py <= high) continue;
		else [low, high] = [Math.min(low, py), Math.max(high, py)];
		path += `${pen}${px} ${py}${pen === "M" ? "h0" : ""}`;
		pen = "L";
	}
	return path.includes("L") ? path : path.replace(/h0/g, "m-2 0h4"); // of points alone
}
