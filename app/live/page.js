'use strict';
// Fetches /api/run again and again and shows it. Everything that came from a peer goes into the page as text,
// never as markup.
(() => {
  const REFRESH_MS = 2000;
  const FINISHED_REFRESH_MS = 15000;
  const SVG = 'http://www.w3.org/2000/svg';
  const byId = (id) => document.getElementById(id);

  // ---- Numbers as people read them
  const whole = (n) => (Math.round(n) + 0).toLocaleString('en-US');  // + 0: no "-0"
  const percent = (ratio, digits = 1) => (100 * ratio).toFixed(digits) + '%';
  const plural = (n, one, many) => `${whole(n)} ${n === 1 ? one : many}`;

  // Rewards, as the status says that those of this run read. Scores of a unit of one letter, as %, carry it everywhere;
  // a longer one stands where there is room.
  const PLAIN = {measure: 'reward', unit: '', per_unit: 1, decimals: 3, low: null, high: null, higher_is_better: true};
  let rewards = PLAIN;
  // Those of the verification, which may be of another kind.
  let verified = PLAIN;
  const inUnit = (reward, digits = rewards.decimals, kind = rewards) => (kind.per_unit * reward + 0).toFixed(digits);
  const unitIsShort = () => rewards.unit.length <= 1;
  const withUnit = (number, kind = rewards) => kind.unit === '%' || kind.unit === '' ? number + kind.unit : `${number}\u00a0${kind.unit}`;
  const rewardText = (reward, digits) => withUnit(inUnit(reward, digits));
  const scoreInUnit = (score) => inUnit(score, verified.decimals, verified);
  const scoreText = (score) => withUnit(scoreInUnit(score), verified);
  const narrowText = (reward, digits) => unitIsShort() ? rewardText(reward, digits) : inUnit(reward, digits);
  const intervalText = (low, high) => `95% interval ${inUnit(low)} to ${rewardText(high)}`;
  const targetText = (reward) => (rewards.higher_is_better ? '' : 'at most ') + rewardText(reward);
  const difference = (reward) => rewards.unit === '%' ? `${inUnit(reward)} points` : rewardText(reward);
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  // What a verified schedule earned: right answers, where they are counted, else the mean of its scores.
  const earned = (score) => score.accuracy ?? score.mean;

  function duration(seconds) {
    if (seconds === null || !Number.isFinite(seconds)) return 'unknown';
    const s = Math.round(seconds);
    const pad = (n) => String(n).padStart(2, '0');
    if (s < 60) return `${s}\u00a0s`;
    if (s < 3600) return `${Math.floor(s / 60)}\u00a0min ${pad(s % 60)}\u00a0s`;
    if (s < 48 * 3600) return `${Math.floor(s / 3600)}\u00a0h ${pad(Math.floor(s / 60) % 60)}\u00a0min`;
    return `${Math.floor(s / 86400)}\u00a0d ${Math.floor(s / 3600) % 24}\u00a0h`;
  }
  // "now", "7 s ago", "6 min ago": short enough for a narrow column.
  function ago(seconds) {
    if (seconds < 1) return 'now';
    const [size, unit] = seconds < 60 ? [1, 's'] : seconds < 3600 ? [60, 'min'] : seconds < 172800 ? [3600, 'h'] : [86400, 'd'];
    return `${whole(Math.floor(seconds / size))}\u00a0${unit} ago`;
  }
  const rate = (perSecond) => {
    if (!(perSecond > 0)) return 'none yet';
    if (perSecond >= 10) return `${whole(perSecond)} per second`;
    if (perSecond >= 1) return `${perSecond.toFixed(1)} per second`;
    return `${(60 * perSecond).toFixed(1)} per minute`;
  };

  // ---- Elements
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function shape(tag, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const label = (x, y, text, attributes = {}) => shape('text', {x, y, ...attributes}, text);
  function row(cells, attributes = {}) {
    const made = element('tr', attributes);
    for (const [text, classes] of cells) made.append(element('td', classes ? {class: classes} : {}, text));
    return made;
  }
  function table(classes, heads, rows) {
    const head = element('tr');
    for (const [text, headClasses] of heads) head.append(element('th', {scope: 'col', class: headClasses || ''}, text));
    return element('table', {class: classes}, element('thead', {}, head), element('tbody', {}, ...rows));
  }
  const nothingYet = (place, text) => {
    place.classList.add('empty');
    place.replaceChildren(element('span', {}, text));
  };

  // ---- Charts
  function ticks(low, high, most, wholeOnly) {
    const span = high - low;
    let step = Math.pow(10, Math.floor(Math.log10(span / most)));
    while (span / step > most) step *= span / (2 * step) <= most ? 2 : span / (5 * step) <= most ? 5 : 10;
    if (wholeOnly) step = Math.max(1, Math.round(step));
    const list = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; ++i) list.push(i * step);
    return {list, step};
  }

  // The frame of a chart as wide as its place: axes, grid, and functions from values to pixels.
  function chart(place, {description, x, y, right, height = 260}) {
    const width = Math.max(240, place.clientWidth);
    const left = 52, top = 14, bottom = 40;
    const toX = (v) => left + (v - x.from) / (x.to - x.from) * (width - left - right);
    const toY = (v) => top + (y.to - v) / (y.to - y.from) * (height - top - bottom);
    const svg = shape('svg', {class: 'chart', role: 'img', 'aria-label': description, viewBox: `0 0 ${width} ${height}`, width, height});
    for (const value of y.ticks) {
      svg.append(shape('line', {class: 'grid', x1: left, x2: width - right, y1: toY(value), y2: toY(value)}));
      svg.append(label(left - 7, toY(value) + 4, y.name(value), {'text-anchor': 'end'}));
    }
    const floor = height - bottom;
    svg.append(shape('line', {class: 'edge', x1: left, x2: width - right, y1: floor, y2: floor}));
    for (const value of x.ticks) {
      svg.append(shape('line', {class: 'edge', x1: toX(value), x2: toX(value), y1: floor, y2: floor + 4}));
      svg.append(label(toX(value), floor + 17, whole(value), {'text-anchor': 'middle'}));
    }
    svg.append(label((left + width - right) / 2, height - 5, x.title, {'text-anchor': 'middle'}));
    place.classList.remove('empty');
    return {svg, toX, toY, left, right: width - right, width, floor, top};
  }

  // Dashed lines over the whole width with their names on the right, moved apart where they would overlap.
  function levels(frame, rows) {
    let last = -Infinity;
    for (const {value, style, name} of [...rows].sort((a, b) => b.value - a.value)) {
      const at = frame.toY(value);
      frame.svg.append(shape('line', {class: `level ${style}`, x1: frame.left, x2: frame.right, y1: at, y2: at}));
      last = Math.max(at + 4, last + 14);
      frame.svg.append(label(frame.right + 6, last, name, {class: style}));
    }
  }

  function drawCurve(run) {
    const place = byId('curve');
    const {episodes, reward, mean, low, high, window, episodes_per_point: perPoint} = run.curve;
    byId('curve-caption').textContent = '';
    if (episodes.length === 0) return nothingYet(place, 'The curve begins with the first episode.');
    // Scores of another kind than the rewards have no place on their axis.
    const measured = run.scores.filter((score) => score.n > 0 && verified.name === rewards.name);
    const values = [...reward, ...low, ...high, ...measured.map(earned)];
    let from = Math.min(...values), to = Math.max(...values);
    // At least twenty steps of the last decimal that is printed.
    const margin = Math.max(20 * Math.pow(10, -rewards.decimals) / rewards.per_unit, 0.08 * (to - from));
    from = Math.max(rewards.low ?? -Infinity, from - margin);
    to = Math.min(rewards.high ?? Infinity, to + margin);
    const wide = place.clientWidth >= 500;
    const yTicks = ticks(from, to, 6, false);
    const last = Math.max(2, episodes[episodes.length - 1]);
    const digits = Math.max(0, -Math.floor(Math.log10(rewards.per_unit * yTicks.step) + 1e-9));
    const frame = chart(place, {
      description: `Reward of ${plural(last, 'learning episode', 'learning episodes')} with a moving mean and its interval`,
      x: {from: 1, to: last, ticks: ticks(1, last, wide ? 8 : 4, true).list, title: 'learning episode'},
      y: {from, to, ticks: yTicks.list, name: (value) => narrowText(value, digits)},
      right: measured.length > 0 ? 104 : 16,
    });
    if (!unitIsShort()) frame.svg.append(label(frame.left, 10, rewards.unit));
    const at = (i, value) => `${frame.toX(episodes[i]).toFixed(1)} ${frame.toY(value).toFixed(1)}`;
    const indices = episodes.map((_, i) => i);
    frame.svg.append(shape('path', {class: 'band',
      d: `M${indices.map((i) => at(i, high[i])).join('L')}L${indices.reverse().map((i) => at(i, low[i])).join('L')}Z`}));
    indices.reverse();
    frame.svg.append(shape('path', {class: 'dots', d: indices.map((i) => `M${at(i, reward[i])}h0`).join('')}));
    frame.svg.append(shape('path', {class: 'line', d: `M${indices.map((i) => at(i, mean[i])).join('L')}`}));
    levels(frame, measured.map((score) => ({value: earned(score), style: score.label, name: `${score.label} ${narrowText(earned(score))}`})));
    const dot = perPoint === 1 ? 'Dots are episodes' : `Dots are means of ${whole(perPoint)} episodes`;
    const caption = `${dot}; the line is the mean of the last ${whole(Math.max(window, perPoint))} with its 95% interval.`
      + (measured.length > 0 ? ` Dashed lines show the held-out ${rewards.measure}.` : '');
    byId('curve-caption').textContent = caption;
    readOut(frame, episodes, (i) => `Up to episode ${whole(episodes[i])}: mean ${rewardText(mean[i])}, ${intervalText(low[i], high[i])}.`,
      (i) => frame.toY(mean[i]), caption);
    place.replaceChildren(frame.svg);
  }

  // What the pointer is at stands in the caption.
  function readOut(frame, xs, text, height, caption) {
    const cursor = shape('line', {class: 'cursor', y1: frame.top, y2: frame.floor, visibility: 'hidden'});
    const marker = shape('circle', {class: 'marker', r: 4, visibility: 'hidden'});
    frame.svg.append(cursor, marker);
    frame.svg.addEventListener('pointermove', (event) => {
      const box = frame.svg.getBoundingClientRect();
      const pixel = (event.clientX - box.left) * frame.width / box.width;
      let nearest = 0;
      for (let i = 1; i < xs.length; ++i) {
        if (Math.abs(frame.toX(xs[i]) - pixel) < Math.abs(frame.toX(xs[nearest]) - pixel)) nearest = i;
      }
      const x = frame.toX(xs[nearest]);
      cursor.setAttribute('x1', x);
      cursor.setAttribute('x2', x);
      marker.setAttribute('cx', x);
      marker.setAttribute('cy', height(nearest));
      for (const mark of [cursor, marker]) mark.setAttribute('visibility', 'visible');
      byId('curve-caption').textContent = text(nearest);
    });
    frame.svg.addEventListener('pointerleave', () => {
      for (const mark of [cursor, marker]) mark.setAttribute('visibility', 'hidden');
      byId('curve-caption').textContent = caption;
    });
  }

  function drawSchedule(run) {
    const place = byId('schedule');
    const samples = run.recommended;
    if (samples.length === 0) return nothingYet(place, 'No schedule yet.');
    const exact = (count) => count === -1;  // a layer with exact attention has no bar
    const uniform = run.total_samples / Math.max(1, samples.filter((count) => !exact(count)).length);
    const most = Math.max(1, uniform, ...samples) * 1.08;
    const rows = run.unit === 'rows';
    const wide = place.clientWidth >= 500;
    const frame = chart(place, {
      description: `Recommended ${rows ? 'rows' : 'samples'} of each of ${plural(samples.length, 'layer', 'layers')}`,
      x: {from: -0.6, to: samples.length - 0.4, title: 'layer',
        ticks: ticks(0, Math.max(1, samples.length - 1), wide ? 16 : 8, true).list.filter((i) => i < samples.length)},
      y: {from: 0, to: most, ticks: ticks(0, most, 6, true).list, name: whole},
      right: 86,
    });
    const room = frame.toX(1) - frame.toX(0);
    const barWidth = Math.min(48, 0.76 * room);
    samples.forEach((count, layer) => {
      const top = frame.toY(Math.max(0, count));
      frame.svg.append(shape('rect', {class: 'bar', x: frame.toX(layer) - barWidth / 2, width: barWidth, y: top, height: frame.floor - top},
        shape('title', {}, `Layer ${layer}: ${exact(count) ? 'exact' : rows ? plural(count, 'row', 'rows') : plural(count, 'sample', 'samples')}`)));
    });
    levels(frame, [{value: uniform, style: 'uniform', name: `uniform ${Number.isInteger(uniform) ? whole(uniform) : uniform.toFixed(1)}`}]);
    samples.forEach((count, layer) => {
      const name = exact(count) ? 'exact' : whole(count);
      if (room < 8 * name.length + 4) return;
      // A number that the line would cross stands on the line instead of on its bar.
      const height = Math.max(0, count);
      const belowLine = frame.toY(height) - frame.toY(uniform);
      const foot = belowLine >= 0 && belowLine < 17 ? uniform : height;
      frame.svg.append(label(frame.toX(layer), frame.toY(foot) - 4, name, {'text-anchor': 'middle', class: 'halo'}));
    });
    const what = rows ? 'Value rows that the query heads of a KV head share' : 'Samples that each query head of a layer draws';
    const exactLayers = samples.map((count, layer) => exact(count) ? layer : -1).filter((layer) => layer >= 0);
    const butExact = exactLayers.length > 0 ? ` but ${exactLayers.join(', ')}, which ${exactLayers.length > 1 ? 'are' : 'is'} exact` : '';
    byId('schedule-caption').textContent = `${what} for one token; ${whole(run.total_samples)} over all layers${butExact}.`;
    place.replaceChildren(frame.svg);
  }

  // ---- The parts of the page
  const STAGES = {preflight: 'Looking', learn: 'Learning', verify: 'Verifying', finished: 'Finished'};

  function showHeader(run) {
    document.title = `${run.stage === 'learn' ? percent(run.episodes_done / run.episodes_wanted, 0) : STAGES[run.stage] || run.stage} \u00b7 ${run.run_id} \u00b7 allot`;
    byId('run').textContent = `run ${run.run_id}`;
    byId('title').textContent = `A sample schedule for ${run.model} on ${run.task}`;
    const stage = byId('stage');
    stage.textContent = run.paused ? 'Paused' : STAGES[run.stage] || run.stage;
    stage.className = `pill ${run.paused ? 'paused' : run.stage}`;
    let done = run.episodes_done, wanted = run.episodes_wanted, what = 'learning episodes';
    if (run.stage === 'verify') {
      done = run.scores.reduce((sum, score) => sum + score.n, 0);
      wanted = run.scores.reduce((sum, score) => sum + score.wanted, 0);
      what = 'held-out answers';
    } else if (run.stage === 'preflight') {
      done = run.preflight.schedules.reduce((sum, schedule) => sum + schedule.answered, 0);
      wanted = run.preflight.schedules.length * run.preflight.wanted;
      what = 'answers before learning';
    }
    const share = wanted > 0 ? Math.min(1, done / wanted) : 0;
    const parts = [`${whole(done)} of ${whole(wanted)} ${what}`];
    if (run.stage !== 'finished' && !run.paused) parts.push(run.eta_s === null ? 'time left unknown' : `${run.until_settled && run.outlook && run.stage === 'learn' ? 'at most ' : ''}${duration(run.eta_s)} left`);
    if (run.settled) parts.push('settled');
    if (run.target_reward !== null) parts.push(`target reward ${targetText(run.target_reward)}`);
    parts.push(`${duration(run.elapsed_s)} spent`);
    byId('summary').textContent = parts.join(' \u00b7 ');
    byId('done').style.width = `${100 * share}%`;
    byId('progress').setAttribute('aria-valuenow', Math.round(100 * share));
  }

  // What dense attention and the even schedule did before learning, and what that says of the run.
  function showPreflight(run) {
    const preflight = run.preflight;
    const measured = preflight ? preflight.schedules.filter((schedule) => schedule.answered > 0) : [];
    byId('preflight-section').hidden = measured.length === 0;
    if (measured.length === 0) return;
    const share = (count, schedule) => percent(count / schedule.answered, 0);
    const rows = measured.map((schedule) => row([[schedule.label], [`${whole(schedule.correct)} of ${whole(schedule.answered)}`, 'number'],
      [share(schedule.cut_off, schedule), 'number'], [share(schedule.no_answer, schedule), 'number'],
      [whole(schedule.output_tokens / schedule.answered), 'number']]));
    const parts = [table('counters', [['Schedule'], ['Right', 'number'], ['Cut off', 'number'], ['No answer', 'number'],
      ['Tokens', 'number']], rows)];
    const say = (text, classes = 'more') => parts.push(element('p', {class: classes}, text));
    const workers = Math.max(1, run.worker_counts.all);
    if (preflight.run_worker_seconds !== null) {
      // Small batches do not fill a GPU.
      const least = preflight.run_worker_seconds_least ?? null;
      say(`At this speed ${whole(preflight.run_episodes)} episodes and the verification take `
        + (least === null ? 'about ' : `${duration(least / workers)} to `)
        + `${duration(preflight.run_worker_seconds / workers)} of ${plural(workers, 'worker', 'workers')}`
        + (preflight.cost !== null ? ` and cost ${preflight.cost.toFixed(2)}.` : '.'));
    }
    for (const warning of preflight.warnings) say(`Warning: ${warning}.`, 'more trouble');
    if (preflight.stop_reason !== null) say(`${preflight.ignored ? 'Ignored' : 'Stopped before learning'}: ${preflight.stop_reason}.`, 'more trouble');
    byId('preflight').replaceChildren(...parts);
  }

  function showTiles(run) {
    // The entropy of shares, which are at most uniform, says more beside that of uniform ones.
    const sampled = run.shares.filter((share, layer) => run.recommended[layer] !== -1).length;
    const most = (run.layer_name || 'share') === 'share' ? Math.log(Math.max(1, sampled)) : 0;
    const shown = (number) => `${number.name} ${number.value.toFixed(3)}`
      + (number.name === 'entropy' && most > 0 ? `, ${percent(number.value / most, 0)} of uniform` : '');
    const ownNumbers = run.policy_numbers.filter((number) => !number.name.startsWith('outlook_'));  // which have a tile of their own
    const counts = run.worker_counts;
    const tiles = [
      ['Recent reward', run.curve.episodes.length > 0 ? rewardText(run.mean_reward_recent) : '\u2013',
        'mean of the last 20 episodes' + (rewards.higher_is_better ? '' : '; lower is better')],
      ['Speed', run.episodes_per_second > 0 ? rate(run.episodes_per_second) : '\u2013', run.episodes_per_second > 0 ? 'episodes, lately' : 'no episodes lately'],
      ['Policy', `version ${whole(run.policy_version)}`, ownNumbers.map(shown).join('; ')],
      ...(run.outlook ? [['Left to gain', difference(run.outlook.left_to_gain),
        `${difference(run.outlook.gain)} over uniform, 95% interval ${inUnit(run.outlook.low)} to ${inUnit(run.outlook.high)}`
        + (run.settled ? '; settled' : '')]] : []),
      ...(run.policy_version === 0 && run.stage === 'finished' && run.episodes_done > 0
        ? [['Schedule', 'even', 'the policy made no update']] : []),
      ['Workers', whole(counts.all), counts.all === 0 ? 'none connected'
        : `${whole(counts.busy)} busy, ${whole(counts.idle)} idle` + (counts.silent > 0 ? `, ${whole(counts.silent)} silent` : '')],
      ['Leases', whole(run.episodes_running), 'held by workers now'],
    ];
    byId('tiles').replaceChildren(...tiles.map(([name, value, note]) =>
      element('div', {}, element('dt', {}, name), element('dd', {}, value), element('dd', {class: 'note'}, note))));
  }

  function showScores(run) {
    const place = byId('scores');
    if (run.scores.length === 0) {
      const stopped = run.preflight && run.preflight.stop_reason !== null && !run.preflight.ignored;
      return nothingYet(place, stopped ? 'The run stopped before learning.' : run.stage === 'finished' ? 'No verification was asked for.'
        : 'Uniform, learned and dense are compared on held-out questions after learning.');
    }
    place.classList.remove('empty');
    const counted = run.scores.some((score) => score.correct !== null);
    const known = run.scores.filter((score) => score.n > 0);
    // The bounds of the picture: the range of scores; where it is open, what there is to show.
    const from = verified.low ?? Math.min(0, ...known.map(earned));
    const to = verified.high ?? (Math.max(0, ...known.map(earned)) || 1);
    const along = (value) => 100 * (value - from) / (to - from);
    const rows = run.scores.map((score) => {
      const made = row([[score.label], [counted ? `${whole(score.correct)} of ${whole(score.n)}` : whole(score.n), 'number']]);
      if (score.n === 0) {
        made.append(element('td', {class: 'number quiet'}, '\u2013'), element('td', {class: 'range'}));
        return made;
      }
      const value = earned(score), between = score.interval_95 !== null;
      const shown = between ? `95% interval ${scoreInUnit(score.interval_95[0])} to ${scoreText(score.interval_95[1])}` : scoreText(value);
      const line = (classes, x1, x2, y1, y2) => shape('line', {class: classes, x1, x2, y1, y2, 'vector-effect': 'non-scaling-stroke'});
      const picture = shape('svg', {viewBox: '-1 0 102 16', preserveAspectRatio: 'none', role: 'img', 'aria-label': shown},
        shape('title', {}, shown), line('track', 0, 100, 8, 8),
        ...(between ? [line(`whisker ${score.label}`, along(score.interval_95[0]), along(score.interval_95[1]), 8, 8)] : []),
        line(`whisker ${score.label}`, along(value), along(value), 2, 14));
      made.append(element('td', {class: 'number'}, scoreText(value)), element('td', {class: 'range'}, picture),
        element('td', {class: 'number quiet'}, between ? `${scoreInUnit(score.interval_95[0])} to ${scoreInUnit(score.interval_95[1])}` : ''));
      return made;
    });
    const note = run.scores.some((score) => score.n < score.wanted)
      ? `${whole(run.scores.reduce((sum, score) => sum + score.n, 0))} of ${whole(run.scores.reduce((sum, score) => sum + score.wanted, 0))} answers are in.` : '';
    place.replaceChildren(table('scores', [['Schedule'], [counted ? 'Right' : 'Answered', 'number'], [capital(verified.measure), 'number'],
      [`${Number(scoreInUnit(from))} to ${withUnit(Number(scoreInUnit(to)), verified)}`, 'range'], ['95%', 'number']], rows),
      element('p', {class: 'more'}, note));
  }

  const COUNTERS = {
    granted: 'leases handed out', accepted: 'results that count', late: 'results after expiry, used', stale: 'results too old to learn from',
    duplicate: 'results answered before', released: 'leases given back', preempted: 'of released: machine taken away',
    answers_kept: 'questions not asked again', expired: 'leases not renewed in time', timed_out: 'of expired: deadline passed',
    crashed: 'leases whose worker broke', failed: 'episodes a worker could not run', rejected: 'results that did not fit',
    set_aside: 'episodes without an attempt left', poisoned: 'of given up: failed on several workers', malformed: 'messages that could not be read',
  };
  const TROUBLE = new Set(['crashed', 'failed', 'rejected', 'set_aside', 'poisoned', 'malformed']);

  // Grades that workers of two holders reported of the same questions; the worst three holders.
  function crossCheck(checks) {
    if (checks.questions === 0) return element('p', {class: 'more'}, 'No question has been graded by two holders yet.');
    const worst = checks.disagreements > 0 ? checks.holders.slice(0, 3).map((row) => `${row.holder} ${whole(row.disagreements)} of ${whole(row.questions)}`) : [];
    return element('p', {class: 'more'}, `${whole(checks.questions)} questions graded by two holders, ${whole(checks.disagreements)} differ` +
      `${worst.length > 0 ? `: ${worst.join(', ')}` : ''}.`);
  }

  function showCounters(run) {
    const order = Object.keys(COUNTERS);
    const place = (name) => order.includes(name) ? order.indexOf(name) : order.length;
    const readable = (name) => name === 'set_aside' ? 'given up' : name.replaceAll('_', ' ');  // named before the word was settled
    const entries = Object.entries(run.counters).sort(([a], [b]) => place(a) - place(b));
    const rows = entries.filter(([, count]) => count !== 0).map(([name, count]) => row(
      [[readable(name)], [whole(count), 'number'], [COUNTERS[name] || '', 'quiet']], {class: TROUBLE.has(name) ? 'warn' : ''}));
    const none = entries.filter(([, count]) => count === 0).map(([name]) => readable(name));
    const parts = rows.length > 0 ? [table('counters', [['Counter'], ['Count', 'number'], ['']], rows)] : [];
    for (const given of run.given_up.slice(-5)) {
      parts.push(element('p', {class: 'more'}, `Episode ${whole(given.episode)} was given up${given.poisoned ? ' (failed on several workers)' : ''}: ${given.reason}`));
    }
    if (run.cross_check) parts.push(crossCheck(run.cross_check));
    if (none.length > 0) parts.push(element('p', {class: 'more'}, `None so far: ${none.join(', ')}.`));
    byId('counters').replaceChildren(...parts);
  }

  const ACTIONS = {
    pause: () => 'paused the run', resume: () => 'resumed the run', stop: () => 'ended the learning',
    target: (event) => `set the target reward to ${targetText(event.reward)}`,
    episodes: (event) => `set the learning episodes to ${whole(event.episodes)}`,
    bounds: (event) => event.bounds ? `set the bounds ${event.bounds}` : 'removed all bounds but the floor',
    'lease-seconds': (event) => `set the time of leases to ${whole(event.lease_seconds)} s`,
    'max-attempts': (event) => `set the attempts at an episode to ${whole(event.max_attempts)}`,
    'heldout-questions': (event) => `set the held-out questions to ${whole(event.heldout_questions)}`,
    cordon: (event) => `cordoned ${event.worker}`, uncordon: (event) => `uncordoned ${event.worker}`,
  };
  function showControls(run) {
    byId('control-section').hidden = run.steering.length === 0;
    byId('control').replaceChildren(...run.steering.slice(-10).reverse().map((event) => {
      const said = ACTIONS[event.action] || (() => event.action);
      return element('p', {class: 'event'}, element('span', {class: 'quiet'}, new Date(event.at_ms).toLocaleString()), ` ${event.by} ${said(event)}.`);
    }));
  }

  // What a worker last told of its work.
  function loadText(load) {
    const share = (part, all) => all > 0 ? `${Math.round(100 * part / all)}%` : '0%';
    return `${whole(Math.round(load.output_tokens / load.seconds))} tokens/s, busy ${share(load.busy_seconds, load.seconds)}, ` +
      `batch ${share(load.slot_seconds, load.busy_seconds)} in use` +
      (load.memory_total_bytes > 0 ? `, ${(load.memory_used_bytes / 2 ** 30).toFixed(1)} of ${(load.memory_total_bytes / 2 ** 30).toFixed(1)} GiB` : '');
  }

  const byName = new Intl.Collator('en', {numeric: true});
  function showWorkers(run) {
    const counts = run.worker_counts;
    byId('worker-count').textContent = counts.all > 0 ? whole(counts.all) : '';
    const place = byId('workers');
    if (run.workers.length === 0) {
      return nothingYet(place, run.stage === 'finished' ? 'No worker is connected; the run needs none.' : 'No worker is connected. The run goes on when one comes.');
    }
    place.classList.remove('empty');
    const state = (worker) => worker.silent ? 'silent' : worker.leases > 0 ? 'busy' : 'idle';
    const rows = [...run.workers].sort((a, b) => b.silent - a.silent || byName.compare(a.worker, b.worker)).map((worker) => {
      const name = element('td', {title: state(worker)}, element('span', {class: 'name'}, worker.worker),
        ...(worker.quarantined_ms > 0 ? [element('div', {class: 'trouble'},
          `gets no leases for ${duration(worker.quarantined_ms / 1000)}: ${worker.last_failure}`)] : []),
        ...(worker.cordoned ? [element('div', {class: 'trouble'}, 'is cordoned: gets no leases')] : []),
        ...(worker.load ? [element('div', {class: 'load'}, loadText(worker.load))] : []),
        element('div', {class: 'below'}, `${worker.device}, allot ${worker.build}`));
      const made = element('tr', {class: state(worker)}, name,
        element('td', {class: 'beside'}, worker.device), element('td', {class: 'beside build'}, worker.build));
      for (const [text, classes] of [[whole(worker.leases), 'number leases'], [whole(worker.episodes_done), 'number'], [ago(worker.last_seen_ms / 1000), 'number seen']]) {
        made.append(element('td', {class: classes}, text));
      }
      return made;
    });
    const parts = [table('workers', [['Worker'], ['Device', 'beside'], ['Release', 'beside build'], ['Leases', 'number leases'], ['Done', 'number'], ['Seen', 'number seen']], rows)];
    if (run.workers.length < counts.all) {
      parts.push(element('p', {class: 'more'}, `${whole(run.workers.length)} of ${whole(counts.all)} workers are listed, silent ones first; \u201callot status --json\u201d lists all.`));
    }
    place.replaceChildren(...parts);
  }

  function drawCharts(run) {
    drawCurve(run);
    drawSchedule(run);
  }

  function show(run) {
    rewards = run.rewards || PLAIN;
    verified = run.verified || rewards;
    byId('measure').textContent = verified.measure;
    showHeader(run);
    showTiles(run);
    showPreflight(run);
    drawCharts(run);
    showScores(run);
    showCounters(run);
    showControls(run);
    showWorkers(run);
    const report = run.stage === 'finished' ? ' The run is finished; its report is report.html in the run directory.' : '';
    byId('updated').textContent = `allot ${run.version}, start ${whole(run.epoch)} of the aggregator; as of ${new Date(run.at_ms).toLocaleTimeString()}.${report}`;
  }

  function notice(text) {
    byId('notice').hidden = text === '';
    if (byId('notice').textContent !== text) byId('notice').textContent = text;
    document.body.classList.toggle('lost', text !== '');
  }

  // ---- Refreshing
  let shown = null;
  let timer = 0;
  async function refresh() {
    clearTimeout(timer);
    let next = REFRESH_MS;
    try {
      const answer = await fetch('/api/run', {cache: 'no-store', signal: AbortSignal.timeout(10000)});
      if (answer.status === 503) {
        notice((await answer.text()).trim());
      } else if (!answer.ok) {
        throw new Error(`status ${answer.status}`);
      } else {
        shown = await answer.json();
        show(shown);
        notice(shown.ready ? '' : shown.why_not_ready);
        if (shown.stage === 'finished') next = FINISHED_REFRESH_MS;
      }
    } catch (error) {
      const since = shown ? ` These are the figures of ${new Date(shown.at_ms).toLocaleTimeString()}.` : '';
      notice(`The aggregator does not answer; trying again.${since}`);
    }
    document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed || 0) + 1);
    if (!document.hidden) timer = setTimeout(refresh, next);
  }
  // A page that an aggregator left in its run directory holds its figures and asks for no others.
  const saved = byId('state');
  if (saved) {
    shown = JSON.parse(saved.textContent);
    show(shown);
    byId('links').remove();
    if (shown.stage !== 'finished') notice(`No aggregator serves this page. These are the figures of ${new Date(shown.at_ms).toLocaleString()}, when it ended.`);
    document.body.dataset.refreshed = '1';
  }
  document.addEventListener('visibilitychange', () => { if (!saved && !document.hidden) refresh(); });
  let width = window.innerWidth;
  window.addEventListener('resize', () => {
    if (shown && window.innerWidth !== width) drawCharts(shown);
    width = window.innerWidth;
  });
  if (!saved) refresh();
})();
