// The run at a glance.
const curve = (name, [steps, values]) => {
  const wide = 240, high = 64, low = Math.min(...values), top = Math.max(...values);
  const x = (i) => steps.length < 2 ? wide / 2 : (wide * (steps[i] - steps[0])) / (steps[steps.length - 1] - steps[0]);
  const y = (value) => (top > low ? high - 4 - ((high - 8) * (value - low)) / (top - low) : high / 2);
  const path = values.map((value, i) => `${i ? 'L' : 'M'}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join('');
  const dot = s('circle', { r: 3, cx: x(values.length - 1), cy: y(values[values.length - 1]) });
  const readout = h('b', {}, compact(values[values.length - 1]));
  const where = h('span', {}, '');
  const show = (i) => {
    dot.setAttribute('cx', x(i));
    dot.setAttribute('cy', y(values[i]));
    readout.textContent = compact(values[i]);
    where.textContent = i === values.length - 1 ? '' : `step ${steps[i]}`;
  };
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect(), at = (wide * (event.clientX - box.left)) / box.width;
    let best = 0;
    for (let i = 1; i < steps.length; i++) if (Math.abs(x(i) - at) < Math.abs(x(best) - at)) best = i;
    show(best);
  };
  return h('figure', { class: 'curve' },
    h('figcaption', {}, h('span', { title: name }, name), where, readout),
    s('svg', {
      viewBox: `-4 0 ${wide + 8} ${high}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${name} over steps`,
      onpointermove: move, onpointerleave: () => show(values.length - 1),
    }, s('path', { d: `${path}L${x(values.length - 1)} ${high}L${x(0)} ${high}Z`, class: 'area' }),
      s('path', { d: path }), dot),
    h('div', { class: 'range' }, h('span', {}, compact(low)), h('span', {}, low === top ? '' : compact(top))));
};

const bars = (rows, whole, text) =>
  h('div', { class: 'bars' }, rows.map(([name, value]) =>
    h('div', {}, h('span', {}, name), h('i', {}, h('i', { '--w': whole ? value / whole : 0 })), h('b', {}, text(value)))));

const overview = (head) => {
  const { curves, first, funnel, time, steps } = head.overview;
  const rest = Object.keys(curves).filter((name) => !first.includes(name));
  const spent = time.reduce((sum, [, value]) => sum + value, 0);
  const more = h('details', {
    ontoggle: (event) => {
      if (event.currentTarget.open && more.children.length === 1)
        more.append(h('div', { class: 'curves' }, rest.map((name) => curve(name, curves[name]))));
    },
  }, h('summary', {}, `${rest.length} more numbers`));
  const conflicts = head.rollouts.filter((one) => one.conflict).length;
  const stat = (value, label, link) => h(link ? 'a' : 'div', { class: 'stat', href: link }, h('b', {}, value), label);
  return h('div', { class: 'overview' },
    h('h1', {}, head.run),
    h('p', { class: 'lead' },
      `${head.methods[0].label} over ${steps} steps. Every token of the rollouts below shows its segment, its advantage `
      + 'under each method, and the reason for its reward.'),
    h('div', { class: 'stats' },
      stat(head.rollouts.length, 'rollouts here', '#/rollouts'), stat(head.groups.length, 'groups', '#/g/0'),
      stat(conflicts, 'with segments in conflict', '#/rollouts?show=conflict'),
      stat(head.rollouts.filter((one) => one.guarded).length, 'omitted a needed call', '#/rollouts?show=guarded')),
    first.length ? [h('h2', {}, 'Curves'), h('div', { class: 'curves' }, first.map((name) => curve(name, curves[name])))]
      : h('p', {}, 'The run left no metrics.jsonl.'),
    rest.length ? more : null,
    h('div', { class: 'columns' },
      funnel.length ? h('section', {}, h('h2', {}, 'How far rollouts came'),
        bars(funnel, funnel[0][1], (value) => `${value} · ${percent(value / (funnel[0][1] || 1))}`)) : null,
      time.length ? h('section', {}, h('h2', {}, 'Where the time went'),
        bars(time, time[0][1], (value) => `${seconds(value)} · ${percent(value / (spent || 1))}`)) : null));
};
