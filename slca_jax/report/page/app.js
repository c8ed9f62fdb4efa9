// Routes, the list of rollouts, keys.
const ROW = 58;
const SHOW = {
  all: ['all', () => true],
  conflict: ['segments in conflict', (one) => one.conflict !== 0],
  rewarded: ['bad calls that GRPO rewards', (one) => app.sign(one, 'slca') < 0 && app.sign(one, 'grpo') > 0],
  finished: ['finished', (one) => one.status === 'finished'],
  out_of_turns: ['out of turns', (one) => one.status === 'out_of_turns'],
  out_of_tokens: ['out of tokens', (one) => one.status === 'out_of_tokens'],
  failed: ['failed', (one) => one.status === 'failed'],
  guarded: ['omitted a needed call', (one) => one.guarded],
  unjudged: ['without a verdict', (one) => one.judge === null],
};
const last = (value) => (value === null || value === undefined ? Infinity : value);
const SORT = {
  order: ['in order', null],
  worst: ['worst calls first', (a, b) => last(a.process) - last(b.process)],
  answer: ['worst answers first', (a, b) => last(a.judge) - last(b.judge)],
  long: ['longest first', (a, b) => b.length - a.length],
};
const KEYS = [
  ['j  k', 'next and previous rollout of the list'], ['←  →', 'previous and next rollout, or group'],
  ['1 … 9', 'method'], ['s', 'colour by segment or by advantage'], ['t  T', 'next and previous token'],
  ['g', 'group of the rollout, or its first rollout'], ['l', 'list'], ['o', 'overview'], ['w', 'worst calls first'],
  ['Esc', 'close'], ['?', 'these keys'],
];

const app = {
  head: read('head'), method: 0, segments: false, bodies: new Map(), placeOf: [], show: 'all', sort: 'order', list: [],
  route: { name: '', at: 0 }, seen: null,
  body(g) {
    if (!app.bodies.has(g)) app.bodies.set(g, read(`group-${g}`));
    return app.bodies.get(g);
  },
  sign(one, name) {
    const m = app.head.methods.findIndex((method) => method.name === name);
    return m < 0 ? 0 : paid(one, m, 'tool').value ?? 0;
  },
  near(r, by) {
    const at = app.list.indexOf(r), next = at < 0 ? app.list[0] : app.list[at + by];
    return next === undefined ? null : `#/r/${next}`;
  },
  steps: (before, after, what) => h('span', { class: 'steps' },
    before ? h('a', { href: before, 'aria-label': `previous ${what}`, 'data-focus': 'before' }, '‹') : h('span', { 'aria-hidden': true }, '‹'),
    after ? h('a', { href: after, 'aria-label': `next ${what}`, 'data-focus': 'after' }, '›') : h('span', { 'aria-hidden': true }, '›')),
  choose(m) {
    if (m >= app.head.methods.length || app.head.methods[m].absent) return;
    app.method = m;
    draw();
  },
  legend: () => h('div', { class: 'legend' },
    h('button', { onclick: () => toggleSegments(), title: 's', 'data-focus': 'colours' }, app.segments ? 'segments' : 'advantages'),
    app.segments ? [h('span', { class: 'key tool' }, 'calls'), h('span', { class: 'key summary' }, 'answer')]
      : [h('span', {}, 'discouraged'), h('span', { class: 'scale' }), h('span', {}, 'reinforced')],
    h('span', { class: 'key worldly' }, 'written by the world')),
  point(event) {
    const token = event.target.closest('.t');
    if (token) pointAt(token);
  },
};
app.head.groups.forEach((group, g) => group.rows.forEach((r, i) => (app.placeOf[r] = [g, i])));
app.head.rollouts.forEach((one) => (one.length = one.sizes.reduce((a, b) => a + b, 0)));

const pointAt = (token) => {
  document.querySelector('.t.at')?.classList.remove('at');
  token.classList.add('at');
  const [place, index] = token.dataset.at.split('.').map(Number), [g, i] = app.placeOf[app.route.at];
  byId('token').hidden = false;
  byId('token').replaceChildren(...tokenView(app.route.at, app.body(g).rollouts[i].parts[place], index).flat());
};
const moveToken = (by) => {
  const all = [...document.querySelectorAll('.t')], at = all.findIndex((token) => token.classList.contains('at'));
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  if (!next) return;
  pointAt(next);
  next.scrollIntoView({ block: 'nearest' });
};
const toggleSegments = () => {
  app.segments = !app.segments;
  document.body.classList.toggle('by-segment', app.segments);
  draw();
};

// Only the rows that can be seen exist.
const listView = () => {
  const space = h('div', { class: 'rows' });
  const box = h('div', { class: 'list', tabindex: 0, role: 'region', 'aria-label': 'rollouts' }, space);
  let from = -1;
  const paint = (anew) => {
    const start = Math.max(0, Math.floor(box.scrollTop / ROW) - 6);
    if (start === from && !anew) return;
    from = start;
    space.style.height = `${app.list.length * ROW}px`;
    const shown = app.list.slice(start, start + Math.ceil((box.clientHeight || 800) / ROW) + 12);
    space.replaceChildren(...shown.map((r, i) => {
      const one = app.head.rollouts[r], [step, group, index] = one.at;
      const row = h('a', { class: `row ${app.route.name === 'r' && app.route.at === r ? 'here' : ''}`, href: `#/r/${r}`, 'data-focus': `row-${r}` },
        h('span', { class: 'name' }, `${step} · ${group} · ${index + 1}`, one.conflict ? h('em', {}, '⇄') : null,
          one.status === 'finished' ? null : h('em', { class: 'bad' }, STATUS[one.status])),
        h('span', { class: 'two' }, h('b', { class: 'tool' }, number(one.process)), h('b', { class: 'summary' }, number(one.judge))),
        strip(one, app.method));
      row.style.top = `${(start + i) * ROW}px`;
      return row;
    }));
  };
  box.addEventListener('scroll', () => requestAnimationFrame(() => paint(false)), { passive: true });
  app.repaint = (follow) => {
    const at = app.list.indexOf(app.route.at), top = at * ROW;
    if (follow && at >= 0 && (top < box.scrollTop || top + ROW > box.scrollTop + box.clientHeight))
      box.scrollTop = top - box.clientHeight / 2;
    paint(true);
  };
  const select = (name, choices, value) => h('select', { 'aria-label': name, 'data-focus': name, onchange: (event) => sift(name, event.target.value) },
    Object.entries(choices).map(([key, [label]]) => h('option', { value: key, selected: key === value }, label)));
  return h('div', { class: 'side' },
    h('div', { class: 'sift' }, select('show', SHOW, app.show), select('sort', SORT, app.sort),
      h('small', {}, `${app.list.length} of ${app.head.rollouts.length} rollouts`,
        h('span', {}, h('b', { class: 'tool' }, 'calls'), h('b', { class: 'summary' }, 'answer')))), box);
};
const sift = (name, value) => {
  app[name] = value;
  const rows = app.head.rollouts.map((_, r) => r).filter((r) => SHOW[app.show][1](app.head.rollouts[r]));
  const order = SORT[app.sort][1];
  app.list = order ? rows.sort((a, b) => order(app.head.rollouts[a], app.head.rollouts[b]) || a - b) : rows;
  side = null;
  draw();
};

let side = null, drawn = '';
const draw = () => {
  const { name, at } = app.route, view = byId('view'), key = `${name}/${at}`, held = document.activeElement;
  byId('token').hidden = true;
  byId('methods').replaceChildren(...app.head.methods.map((method, m) => h('button', {
    role: 'radio', 'aria-checked': m === app.method, disabled: !!method.absent, title: method.absent || method.rule,
    'data-focus': `method-${m}`, onclick: () => app.choose(m),
  }, method.label)));
  byId('nav').replaceChildren(...[['#/', 'overview', ''], ['#/rollouts', 'rollouts', 'rollouts'], ['#/g/0', 'groups', 'g']].map(
    ([href, label, own]) => h('a', { href, class: name === own || (own === 'rollouts' && name === 'r') ? 'on' : '' }, label)));
  document.body.dataset.view = name || 'overview';
  const main = name === 'g' ? groupView(at) : name === 'r' ? rolloutView(at) : name === 'rollouts' ? h('div', { class: 'hint' },
    h('p', {}, 'Choose a rollout, or press j.')) : overview(app.head);
  if (name === '') view.replaceChildren(main);
  else {
    side = side || listView();
    const content = h('div', { class: 'content' }, main);
    if (side.parentNode === view && view.children.length === 2) view.replaceChild(content, view.children[1]);
    else view.replaceChildren(side, content);
    app.repaint(key !== drawn);
  }
  if (key !== drawn) window.scrollTo(0, 0);
  drawn = key;
  // What had the keyboard's focus was made anew, and has it again.
  if (!held.isConnected) (document.querySelector(`[data-focus="${held.dataset.focus}"]`) || view).focus({ preventScroll: true });
};
const go = () => {
  if (location.hash === app.seen) return;
  app.seen = location.hash;
  const [path, query] = location.hash.slice(2).split('?'), [name, at] = path.split('/');
  const most = { g: app.head.groups.length, r: app.head.rollouts.length }[name] || 0;
  app.route = ['g', 'r', 'rollouts'].includes(name)
    ? { name, at: Math.max(0, Math.min(most - 1, Number(at) || 0)) } : { name: '', at: 0 };
  const show = new URLSearchParams(query || '').get('show');
  if (show && SHOW[show]) sift('show', show);
  else draw();
};

const visit = (hash) => {
  location.hash = hash;
  go();
};

const keys = {
  j: () => step(1), k: () => step(-1), ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), s: toggleSegments,
  t: () => moveToken(1), T: () => moveToken(-1), o: () => visit('#/'), l: () => visit('#/rollouts'),
  g: () => {
    const { name, at } = app.route;
    visit(name === 'r' ? `#/g/${app.placeOf[at][0]}` : name === 'g' ? `#/r/${app.head.groups[at].rows[0]}` : '#/g/0');
  },
  w: () => { sift('sort', 'worst'); if (app.list.length) visit(`#/r/${app.list[0]}`); },
  Escape: () => (byId('token').hidden = true), '?': () => byId('help').showModal(),
};
const step = (by) => {
  const next = app.route.name === 'r' ? app.near(app.route.at, by) : app.list.length ? `#/r/${app.list[0]}` : null;
  if (next) visit(next);
};
const beside = (by) => {
  const { name, at } = app.route;
  if (name === 'g') visit(`#/g/${Math.max(0, Math.min(app.head.groups.length - 1, at + by))}`);
  else step(by);
};
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT/.test(event.target.tagName) || byId('help').open) return;
  const digit = Number(event.key), act = digit >= 1 ? () => app.choose(digit - 1) : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
byId('help').append(h('h2', {}, 'Keys'), h('dl', {}, KEYS.map(([key, what]) => [h('dt', {}, key), h('dd', {}, what)])),
  h('button', { onclick: () => byId('help').close() }, 'close'));
byId('help-button').addEventListener('click', keys['?']);
byId('run').textContent = app.head.run;
document.title = `${app.head.run} · credit report`;
app.list = app.head.rollouts.map((_, r) => r);
window.addEventListener('hashchange', go);
go();
document.documentElement.dataset.drawn = performance.now().toFixed(1);
requestAnimationFrame(() => setTimeout(() => (document.documentElement.dataset.seen = performance.now().toFixed(1))));
