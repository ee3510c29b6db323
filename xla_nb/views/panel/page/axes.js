// Axes: round numbers within a range, and their words.

/** About `wanted` round numbers within [low, high], `least` apart, three if there are, and their distance. */
function ticks(low, high, wanted, least) {
	const rough = (high - low) / wanted;
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = Math.max(least, [1, 2, 5, 10].find((m) => m * power >= rough) * power);
	const values = [];
	for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && values.length < 20; k++) values.push(k * step || 0);
	return values.length < 3 && wanted < 20 ? ticks(low, high, 2 * wanted, least) : [values, step];
}

/** With as many digits as tell it from the next. */
function tickText(value, step) {
	const power = (x) => Math.floor(Math.log10(Math.abs(x)) + 1e-9);
	if (step >= 1 && Math.abs(value) < 1e6) return count(value);
	return value ? value.toPrecision(1 + Math.max(0, power(value) - power(step))).replace("e+", "e") : "0";
}

/** The labels of an axis: numbers within [low, high], and how they are written. */
function labels(low, high, wanted, least = 0) {
	const [values, step] = ticks(low, high, wanted, least);
	return values.map((value) => [value, tickText(value, step)]);
}

/** Those of a logarithmic axis from 10 ** first: powers of ten, on a short one numbers between too. */
function logLabels(first, last) {
	const [low, high] = [Math.max(Number.MIN_VALUE, 10 ** first), Math.min(Number.MAX_VALUE, 10 ** last)];
	const apart = Math.ceil((last - first) / 5); // powers of ten from one label to the next
	for (const parts of [[1], [1, 3], [1, 2, 5]]) {
		const found = [];
		for (let k = Math.floor(first / apart) * apart; k <= last; k += apart)
			found.push(...parts.map((part) => Number(`${part}e${k}`)).filter((value) => value >= low && value <= high));
		if (found.length > 2) return found.map((value) => [value, tickText(value, value)]);
	}
	return labels(low, high, 4);
}

/** The least and the greatest number, without NaN. */
function reach(lists) {
	let [low, high] = [Infinity, -Infinity];
	for (const value of lists.flat()) {
		if (value < low) low = value;
		if (value > high) high = value;
	}
	return [low, high];
}

/** The index of the point nearest x. */
const nearest = (xs, x) =>
	xs.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0);
