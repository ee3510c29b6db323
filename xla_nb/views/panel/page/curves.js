// Lines of a chart: smoothed, several as their mean and band, and as a path.

/** A running mean, debiased as in TensorBoard. */
export function smoothed(values, weight) {
	let [sum, scale] = [0, 0];
	return values.map((value) => {
		if (isNaN(value)) return value;
		sum = weight * sum + (1 - weight) * value;
		scale = weight * scale + (1 - weight);
		return sum / scale;
	});
}

/** Up to where those in progress have reported. */
export function reached(lines, [x0, x1], runs) {
	const all = [...lines].filter(([, { x }]) => x.length);
	const far = x0 + (all.some(([, { x }]) => x.length > 50) && 0.8 * (x1 - x0));
	return Math.min(x1, ...all.filter(([rank, { x }]) => runs(rank) && x.at(-1) >= far).map(([, { x }]) => x.at(-1)));
}

/** Mean, with gaps where other ranks have a number, lowest and highest. */
export function bundle(lines, [x0, last], places) {
	const all = [...lines].filter(([, { x }]) => x.length).map(([, line]) => ({ ...line, i: 0 }));
	const [mean, low, high] = [[], [], []].map((y) => ({ x: [], y }));
	for (let k = 0, ranks; k <= places; k++) {
		const x = x0 + (k / places) * (last - x0);
		const found = [];
		for (const line of all) {
			const { x: xs, y: ys } = line;
			while (line.i < xs.length - 1 && xs[line.i + 1] <= x) line.i++;
			const { i } = line;
			if (x < xs[0] - 1e-9 || x > xs.at(-1) + (last - x0) / places) continue;
			const part = i < xs.length - 1 && (x - xs[i]) / (xs[i + 1] - xs[i]);
			const y = ys[i] + (part && part * (ys[i + 1] - ys[i]));
			if (!isNaN(y)) found.push(y);
		}
		const n = found.length;
		const ys = [found.reduce((sum, y) => sum + y, 0) / n, Math.min(...found), Math.max(...found)];
		if (ranks && n !== ranks) ys[0] = NaN; // of more or fewer ranks: a gap
		ranks = n;
		[mean, low, high].forEach((line, j) => {
			if (j && !n) return;
			line.x.push(x);
			line.y.push(ys[j]);
		});
	}
	return { mean, low, high };
}

/** A path through the points, with only the extremes of each pixel column. */
export function trace({ x, y }, sx, sy) {
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
