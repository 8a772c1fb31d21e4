// The panels that draw the server's document (debug/ui/data), and findings.

// colourOf keeps a flow's colour its own: a hash of its name (FNV-1a) on the colour wheel.
function colourOf(f) {
  let h = 0x811c9dc5;
  for (const c of f.schema + '/' + f.distinguisher) h = Math.imul(h ^ c.codePointAt(0), 0x01000193);
  h = Math.imul(h ^ h >>> 15, 0x2c1b3c6d) >>> 0;
  return `hsl(${h % 360} ${50 + (h >>> 9) % 30}% ${45 + (h >>> 17) % 15}%)`;
}

// seats draws one level: a cell's width is a seat's share of the most that it may have.
function seats(level, most) {
  const at = n => Math.min(600, 600 * n / Math.max(1, most));
  const label = `${level.inUse} of ${level.limit} seats in use; nominal ${level.nominal}`;
  let x = 0;
  const taken = level.flows.filter(f => f.seats > 0).map(f => {
    const width = at(f.seats), bar = svg('rect', {x, y: 4, width: Math.max(1, width - 1), height: 16, rx: 2, fill: colourOf(f)},
      svg('title', {}, `${f.distinguisher || f.schema}: ${f.seats}`));
    x += width;
    return bar;
  });
  const own = Math.min(level.limit, level.nominal);
  return svg('svg', {class: 'seats', viewBox: '0 0 600 24', preserveAspectRatio: 'none', role: 'img', 'aria-label': label},
    svg('rect', {x: 0, y: 2, width: at(own), height: 20, rx: 3, class: 'own'}),
    level.limit > level.nominal && svg('rect', {x: at(level.nominal), y: 2, width: at(level.limit - level.nominal), height: 20, class: 'borrowed'}, svg('title', {}, 'borrowed')),
    level.limit < level.nominal && svg('rect', {x: at(level.limit), y: 2, width: at(level.nominal - level.limit), height: 20, class: 'lent'}, svg('title', {}, 'lent')),
    x < at(level.inUse) && svg('rect', {x, y: 4, width: at(level.inUse) - x, height: 16, class: 'tails'}, svg('title', {}, 'seats of finished requests and of other flows')),
    taken);
}

function queues(level) {
  const longest = Math.max(1, level.queueLength);
  return el('div', {class: 'queues', role: 'img', 'aria-label': `${level.queues.length} of ${level.queueCount} queues in use`},
    level.queues.map(q => el('span', {class: 'queue', title: `queue ${q.index}: ${q.waiting} waiting, ${q.executing} running`},
      el('span', {style: {height: 100 * Math.sqrt(q.waiting / longest) + '%'}}))));
}

function levelCard(level, most, rate) {
  const lent = level.nominal - level.limit;
  const flows = level.flows.filter(f => f.waiting || f.executing);
  return el('article', {class: 'card'},
    el('h3', {}, level.name, level.exempt && el('span', {class: 'tag'}, 'exempt'), level.quiescing && el('span', {class: 'tag removed'}, 'deleting')),
    seats(level, most),
    el('p', {class: 'muted small facts'},
      el('span', {}, `${level.inUse} of ${level.limit} seats`),
      el('span', {}, lent > 0 ? `${lent} lent` : lent < 0 ? `${-lent} borrowed` : `${level.nominal} nominal`),
      el('span', {}, `${level.waiting} waiting`),
      el('span', {}, `${rate.toFixed(rate < 10 ? 1 : 0)} /s`),
      level.rejected > 0 && el('span', {class: 'bad'}, `${number(level.rejected)} rejected`)),
    level.queues.length > 0 && level.queueCount > 0 && queues(level),
    flows.length > 0 && table([{text: 'Turn', num: true}, 'Flow', {text: 'Waiting', num: true}, {text: 'Seats', num: true}, {text: 'Due', num: true}],
      flows.slice(0, 12).map(f => ({cells: [f.turn ? (f.turn === 1 ? el('b', {class: 'next'}, 'next') : f.turn) : '·',
        el('span', {}, el('span', {class: 'swatch', style: {background: colourOf(f)}}), f.distinguisher || 'all', el('span', {class: 'muted small'}, ' ' + f.schema)),
        f.waiting, f.seats, f.turn ? (f.behind < 0 ? '−' : '') + duration(Math.abs(f.behind)) : '']}))),
    level.flowCount > 12 && el('p', {class: 'muted small'}, `${level.flowCount} flows`));
}

function flowControl(app) {
  const node = el('section', {class: 'panel'});
  let before = new Map(), when = 0;
  const crowded = new Set(); // levels where somebody has waited: they come first, and stay there
  function draw(data) {
    if (!data.flowControl) return node.replaceChildren(el('p', {class: 'empty'}, 'Flow control is disabled (--enable-priority-and-fairness=false).'));
    const now = Date.parse(data.time), levels = data.flowControl.levels, most = Math.max(...levels.map(l => Math.max(l.limit, l.nominal, l.inUse)));
    const cards = levels.map(l => {
      const last = before.get(l.name);
      return [l, last === undefined || now <= when ? 0 : Math.max(0, (l.dispatched - last) * 1000 / (now - when))];
    });
    levels.filter(l => l.waiting).forEach(l => crowded.add(l.name));
    before = new Map(levels.map(l => [l.name, l.dispatched]));
    when = now;
    node.replaceChildren(
      el('p', {class: 'muted'}, `${data.flowControl.seats} seats in total. `, el('span', {class: 'legend'}, el('i', {class: 'own'}), 'nominal ', el('i', {class: 'borrowed'}), 'borrowed ', el('i', {class: 'lent'}), 'lent ')),
      el('div', {class: 'cards'}, cards.sort((a, b) => crowded.has(b[0].name) - crowded.has(a[0].name)).map(([l, rate]) => levelCard(l, most, rate))));
  }
  return {id: 'flow', name: 'Flow control', node, draw, show: () => app.data && draw(app.data)};
}

function watches(app) {
  const node = el('section', {class: 'panel scroll'});
  function draw({watches: w}) {
    const most = Math.max(1, ...w.items.map(i => i.lag));
    node.replaceChildren(
      el('p', {class: 'muted'}, `${w.total} open, ${w.behind} behind.`, w.total > w.items.length ? ` Showing the slowest ${w.items.length}.` : ''),
      table(['Resource', 'User', 'Program', 'Open for', {text: 'Revision', num: true}, 'Behind'], w.items.map(i => ({cells: [
        el('span', {}, i.resource + (i.group ? '.' + i.group : ''), el('span', {class: 'muted small'}, ' ' + (i.namespace || 'all namespaces'),
          [i.labelSelector, i.fieldSelector].filter(Boolean).map(s => el('code', {}, ' ' + s)))),
        i.user, el('span', {class: 'muted', title: i.agent}, short(i.agent.split(' ')[0] || '—', 40)), duration((Date.now() - Date.parse(i.started)) / 1000), i.at,
        i.lag ? el('span', {}, meter(i.lag, most, i.lag + ' revisions', 'bad'), ` ${number(i.lag)} for ${duration(i.lagSeconds)}`) : el('span', {class: 'good'}, 'no')]})),
      'No watches.'));
  }
  return {id: 'watches', name: 'Watches', node, draw, show: () => app.data && draw(app.data), badge: d => d.watches.total};
}

function deprecations(app) {
  const node = el('section', {class: 'panel scroll'});
  function draw({deprecations: items}) {
    node.replaceChildren(table(['Version', 'User', 'Program', 'Verb', {text: 'Requests', num: true}, 'Last', 'Removed in', 'Replacement'], items.map(u => ({cells: [
      el('span', {}, u.resource + (u.subresource ? '/' + u.subresource : ''), el('span', {class: 'muted small'}, ' ' + (u.group ? u.group + '/' : '') + u.version)),
      u.user, el('span', {class: 'muted'}, short(u.userAgent, 40)), u.verb, number(u.count), ago(u.lastSeen), u.removedRelease || '', u.useInstead || '']})),
    'No requests for deprecated versions since the server started.'));
  }
  return {id: 'deprecated', name: 'Deprecated', node, draw, show: () => app.data && draw(app.data), badge: d => d.deprecations.length};
}

const circles = {
  fight: 'Two clients overwrite each other’s fields', recreate: 'One client deletes objects that another one recreates',
  'no-op': 'Writes that change nothing', conflict: 'Repeated conflicts', watch: 'Repeatedly opened watch', read: 'Repeated reads of the same objects',
};

function findings(app) {
  const node = el('section', {class: 'panel'});
  let found = 0, polls = 0, refused = false;
  async function load() {
    try {
      const doc = await json('debug/findings');
      const items = doc.items || [];
      found = items.filter(f => !f.ended).length;
      node.replaceChildren(...(items.length ? items.map(card) : [el('p', {class: 'empty'}, 'No findings.')]));
      refused = false;
    } catch (err) {
      refused = true;
      node.replaceChildren(el('p', {class: 'empty'}, err.message));
    }
  }

  // sample asks now and then also when the panel is not shown, for the number beside its name.
  function sample() { if (++polls % (node.hidden ? 5 : 2) === 1 && !refused) load(); }

  function card(f) {
    const group = f.group ? '.' + f.group : '', sub = f.subresource ? '/' + f.subresource : '';
    const who = (f.who || []).map(w => el('span', {class: 'tag', title: w.agent}, (w.manager || (w.agent || '').split('/')[0] || w.user) + ' · ' + w.user));
    return el('article', {class: 'card finding' + (f.ended ? ' over' : '')},
      el('h3', {}, circles[f.kind] || f.kind, f.ended && el('span', {class: 'muted small'}, '  resolved ' + ago(f.ended))),
      el('p', {}, who, el('span', {class: 'muted'}, ` ${f.verb} ${f.resource}${group}${sub} `, f.selector && el('code', {}, f.selector))),
      (f.objects || []).map(o => el('p', {}, el('button', {type: 'button', class: 'plain', onclick: () => open(f, o)}, el('b', {}, o)))),
      (f.paths || []).map((path, i) => el('div', {class: 'diff'}, el('code', {}, path),
        i === 0 && f.values ? el('div', {}, f.values.map(v => el('span', {class: 'value-of'}, short(v, 200)))) : el('div'))),
      el('p', {class: 'muted small'}, `${number(f.times)} times, first ${ago(f.since)}, last ${ago(f.last)}`),
      f.revisions && el('p', {class: 'row'}, f.revisions.map(r => el('button', {type: 'button', onclick: () => { app.travel(r); app.openPanel('timeline'); }}, 'revision ' + number(r)))));
  }

  function open(f, object) {
    const cut = object.indexOf('/');
    app.openObject({group: f.group, resource: f.resource, namespace: cut > 0 ? object.slice(0, cut) : '', name: object.slice(cut + 1)});
  }
  return {id: 'findings', name: 'Findings', node, show: load, sample, badge: () => found};
}

// quantile estimates one from counts between bounds; it is a bound, or a point between two.
function quantile(q, counts, bounds) {
  const all = counts.reduce((a, b) => a + b, 0);
  if (all === 0) return null;
  let rest = q * all;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] >= rest) {
      const low = i ? bounds[i - 1] : 0, high = bounds[i] ?? bounds[bounds.length - 1];
      return low + (high - low) * rest / counts[i];
    }
    rest -= counts[i];
  }
  return bounds[bounds.length - 1];
}

const points = 120;

// plot draws lines over the last points samples, on a logarithmic scale of seconds, and the commits of each sample as bars.
function plot(samples) {
  const width = 600, height = 200, left = 44, right = 8, top = 10, bottom = 22, low = 1e-5, high = 1;
  const x = i => left + (width - left - right) * (i + points - samples.length) / (points - 1);
  const y = s => top + (height - top - bottom) * (1 - (Math.log10(Math.min(high, Math.max(low, s))) - Math.log10(low)) / (Math.log10(high) - Math.log10(low)));
  const busiest = Math.max(1, ...samples.map(s => s.rate));
  const line = (key, kind) => {
    let path = '', pen = false;
    samples.forEach((s, i) => {
      if (s[key] === null) { pen = false; return; }
      path += (pen ? 'L' : 'M') + x(i).toFixed(1) + ' ' + y(s[key]).toFixed(1);
      pen = true;
    });
    const dots = samples.map((s, i) => s[key] !== null && (samples[i - 1]?.[key] ?? null) === null && (samples[i + 1]?.[key] ?? null) === null &&
      svg('circle', {cx: x(i), cy: y(s[key]), r: 2, class: kind}));
    return [svg('path', {d: path || 'M0 0', class: 'line ' + kind}), dots];
  };
  return svg('svg', {class: 'plot', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Commit duration in the last two minutes'},
    [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1].map(s => [svg('line', {x1: left, x2: width - right, y1: y(s), y2: y(s), class: 'grid'}),
      svg('text', {x: left - 6, y: y(s) + 3, 'text-anchor': 'end'}, duration(s).replace('1.0 ', '1 '))]),
    samples.map((s, i) => s.rate > 0 && svg('rect', {x: x(i) - 1.6, width: 3.2, y: height - bottom - 40 * s.rate / busiest, height: 40 * s.rate / busiest, class: 'bars'})),
    line('p50', 'p50'), line('p99', 'p99'),
    svg('text', {x: left, y: height - 6}, '2 min ago'), svg('text', {x: width - right, y: height - 6, 'text-anchor': 'end'}, 'now'));
}

function store(app) {
  const samples = [];
  let last = null;
  const tiles = el('div', {class: 'tiles'}), chart = el('div'), legend = el('p', {class: 'muted small legend'},
    el('i', {class: 'p50'}), 'median ', el('i', {class: 'p99'}), '99th percentile ', el('i', {class: 'bars'}), 'commits per second');
  const kinds = el('div', {class: 'scroll'});

  // sample is called for each document, whether the panel is shown or not.
  function sample(data) {
    const s = data.store, now = Date.parse(data.time);
    if (last && now > last.now && s.commits >= last.commits) {
      const counts = s.buckets.map((n, i) => n - last.buckets[i]);
      samples.push({p50: quantile(0.5, counts, s.bounds), p99: quantile(0.99, counts, s.bounds), rate: (s.commits - last.commits) * 1000 / (now - last.now)});
      if (samples.length > points) samples.shift();
    }
    last = {now, commits: s.commits, buckets: s.buckets};
  }

  function draw({store: s}) {
    const rate = samples[samples.length - 1]?.rate || 0;
    tiles.replaceChildren(
      tile('Revision', number(s.revision), `${number(s.revision - s.compacted)} kept`),
      tile('History', s.keptSeconds ? duration(s.keptSeconds) : 'all', s.compacted ? 'compacted to ' + number(s.compacted) : 'nothing compacted yet'),
      tile('File', bytes(s.fileBytes), el('span', {}, meter(s.fileBytes - s.freeBytes, s.fileBytes, 'in use'), ' ' + bytes(s.freeBytes) + ' free' + (s.logBytes ? ', log ' + bytes(s.logBytes) : ''))),
      tile('Objects', number(s.objects), s.resourceCount + ' types'),
      tile('Commits', number(s.commits), `${rate.toFixed(rate < 10 ? 1 : 0)} per second, ${(s.changes / Math.max(1, s.commits)).toFixed(1)} changes each`),
      tile('Commit duration', s.commits ? duration(s.commitSeconds / s.commits) : '—', s.commits ? '99th percentile ' + duration(quantile(0.99, s.buckets, s.bounds)) : ''));
    chart.replaceChildren(plot(samples));
    const most = Math.max(1, ...s.resources.map(r => r.bytes));
    kinds.replaceChildren(table(['Kind', {text: 'Objects', num: true}, {text: 'Bytes', num: true}, ''], s.resources.slice(0, 40).map(r => ({
      open: () => app.openList(r), cells: [el('span', {}, r.resource, el('span', {class: 'muted small'}, r.group && ' ' + r.group)), number(r.objects), bytes(r.bytes), meter(r.bytes, most, bytes(r.bytes))]}))));
  }
  return {id: 'store', name: 'Store', sample, draw, show: () => app.data && draw(app.data),
    node: el('section', {class: 'panel'}, tiles, el('h3', {}, 'Commit duration'), chart, legend, el('h3', {}, 'Stored objects'), kinds)};
}
