// Groups and rollouts: tokens under their advantages, and why each reward is what it is.
const wordOf = (row) => app.head.texts[row][0];
const rewardNames = ['R_tool', 'R_sum', 'R_total'];
// What a method pays a segment of a rollout: the advantage of its first run there; turns of TARA differ, and are many.
const paid = (one, m, segment) => {
  const values = one.advantages[m].filter((_, run) => one.segments[run] === segment);
  return { value: values.length ? values[0] : null, many: values.some((value) => value !== values[0]), values };
};
const paidCell = (one, m, segment) => {
  if (app.head.methods[m].absent) return h('td', { class: 'even', title: app.head.methods[m].absent }, '—');
  const { value, many, values } = paid(one, m, segment);
  const text = many ? `${signed(Math.min(...values))}…${signed(Math.max(...values))}` : signed(value);
  return tinted('td', many ? values.reduce((a, b) => a + b, 0) / values.length : value, {}, text);
};
const strip = (one, m) =>
  h('span', { class: 'strip' }, one.segments.map((segment, run) =>
    tinted('i', one.advantages[m][run] ?? 0, { class: segment, '--n': Math.max(1, one.sizes[run]) })));

const credits = (rows, { link } = {}) => {
  const methods = app.head.methods.map((method, m) => ({ ...method, m })).filter((method) => !method.absent);
  const on = (m) => (m === app.method ? 'on' : '');
  return h('div', { class: 'wide' }, h('table', { class: 'credits' },
    h('thead', {},
      h('tr', {}, h('th', { rowspan: 2 }, 'rollout'), h('th', { colspan: 2 }, 'reward'),
        methods.map(({ label, m }) => h('th', { colspan: 2, class: `method ${on(m)}` }, label))),
      h('tr', { class: 'sub' }, h('th', {}, 'tool'), h('th', {}, 'answer'),
        methods.map(() => [h('th', {}, 'tool'), h('th', {}, 'answer')]))),
    h('tbody', {}, rows.map((r) => {
      const one = app.head.rollouts[r], [tool, sum] = one.rewards[0];
      return h('tr', {}, h('th', {}, link ? h('a', { href: `#/r/${r}` }, one.at[2] + 1) : one.at[2] + 1),
        h('td', {}, number(tool)), h('td', {}, number(sum)),
        methods.map(({ m }) => [paidCell(one, m, 'tool'), paidCell(one, m, 'summary')]));
    }))));
};

const callText = (call) =>
  `${call.name}(${Object.entries(call.arguments).map(([key, value]) => `${key}=${value}`).join(', ')})`;
const goldOf = (body) => h('div', { class: 'gold' }, h('span', { class: 'label' }, 'gold'),
  body.gold.length ? body.gold.map((step, i) => h('span', { class: 'step' }, h('small', {}, `step ${i + 1}`),
    step.map((call) => h('code', {}, callText(call))))) : h('span', {}, 'no call is needed'));

// The parts of a rollout. `fine`: a span per token, which can be pointed at; else one per run.
const CHUNK = 400;
const partsOf = (r, body, fine) => {
  const one = app.head.rollouts[r], m = app.method, out = [];
  body.parts.forEach((part, place) => {
    if (part.world !== undefined) {
      out.push(h('div', { class: `world ${part.refused.length ? 'refused' : ''}` },
        h('span', { class: 'tag' }, part.refused.length ? 'the world refused' : 'the world'), h('pre', {}, part.world.replace(/^\n+|\n+$/g, ''))));
      return;
    }
    const segment = one.segments[part.run] || 'none', a = one.advantages[m][part.run];
    const blocks = [];
    for (let start = 0; start < part.tokens.length; start += CHUNK) {
      const rows = part.tokens.slice(start, start + CHUNK);
      blocks.push(tinted('span', a ?? 0, { class: 'ink' }, fine
        ? rows.map((row, i) => h('span', { class: 't', 'data-at': `${place}.${start + i}` }, wordOf(row)))
        : rows.map(wordOf).join('')));
    }
    out.push(h('div', { class: `run ${segment}` },
      h('span', { class: 'tag' }, segment === 'summary' ? 'answer' : segment === 'tool' ? `turn ${part.turn + 1}` : 'not learned',
        h('b', {}, a === undefined ? '' : ` ${signed(a)}`)),
      h('pre', {}, blocks)));
  });
  if (body.error) out.push(h('p', { class: 'note' }, `It failed: ${body.error}`));
  return out;
};

const factsOf = (one, body) => [
  chip(STATUS[one.status], one.status),
  one.guarded ? chip('omitted a needed call', 'bad', 'The guard replaced the judge’s score by the penalty.') : null,
  one.conflict > 0 ? chip('calls better, answer worse', 'odd') : null,
  one.conflict < 0 ? chip('calls worse, answer better', 'odd', 'A unified reward can reinforce these calls.') : null,
  body && body.why.judge && body.why.judge.failed ? chip('the judge failed', 'bad') : null,
];

const groupView = (g) => {
  const group = app.head.groups[g], body = app.body(g);
  return h('div', { class: 'group' },
    h('p', { class: 'crumbs' }, `step ${group.step} · group ${group.group}`, app.steps(
      g > 0 ? `#/g/${g - 1}` : null, g + 1 < app.head.groups.length ? `#/g/${g + 1}` : null, 'group')),
    h('h1', {}, group.question || body.task), goldOf(body), credits(group.rows, { link: true }),
    app.legend(),
    h('div', { class: 'cards' }, group.rows.map((r, i) => {
      const one = app.head.rollouts[r];
      return h('article', { class: 'card' },
        h('a', { class: 'title', href: `#/r/${r}` }, `rollout ${one.at[2] + 1}`, strip(one, app.method)),
        h('div', { class: 'chips' }, factsOf(one, body.rollouts[i])),
        h('div', { class: 'meters' }, meter('process', one.process, 'tool'), meter('judge', one.judge, 'summary')),
        h('div', { class: 'text small' }, partsOf(r, body.rollouts[i], false)));
    })));
};

const scoreTable = (why) => h('table', { class: 'parts' }, h('tbody', {}, why.parts.map((part) =>
  h('tr', {}, h('th', {}, part.name), h('td', {}, number(part.score)), h('td', { class: 'weak' }, `× ${number(part.weight)}`),
    h('td', { class: 'why' }, h('i', { class: 'bar' }, h('i', { '--w': part.score })), part.why)))));

const SIGN = { same: '✓', other: '≠', missing: '∅', extra: '+' };
const matchOf = (match) => h('li', { class: match.made ? '' : 'lost' },
  h('div', {}, h('code', {}, match.name), ' ', match.made ? `turn ${match.turn + 1}` : 'never made',
    h('span', { class: 'weak' }, ` keys ${number(match.key)} · values ${number(match.value)}`)),
  match.arguments.length ? h('table', { class: 'arguments' }, h('tbody', {}, match.arguments.map((row) =>
    h('tr', { class: row.state }, h('td', {}, SIGN[row.state]), h('th', {}, row.key), h('td', {}, row.gold ?? ''),
      h('td', {}, row.state === 'same' && row.gold === row.made ? '' : row.made ?? (match.made ? 'not given' : '')))))) : null);

const judgeOf = (judge) => {
  if (!judge) return null;
  return h('section', {}, h('h2', {}, 'The judge'),
    h('p', {}, judge.failed ? 'gave no verdict. ' : [h('b', {}, judge.word || 'score'), ` ${number(judge.score)}`],
      judge.guarded ? ' The omission guard replaced this score by its penalty.' : ''),
    judge.reason ? h('blockquote', {}, judge.reason) : null,
    judge.referee ? h('p', {}, `Second judge: ${number(judge.referee.score)}. ${judge.referee.reason}`) : null);
};

const whyOf = (one, body) => {
  const why = body.why;
  if (why.failed || !why.parts.length)
    return h('section', { class: 'reasons' }, h('h2', {}, 'No rewards'), h('p', {}, why.failed || 'None were stored.'));
  return h('section', { class: 'reasons' },
    h('h2', {}, 'Process score ', h('b', {}, number(one.process))), scoreTable(why),
    h('h2', {}, 'Calls against gold'),
    why.matches.length ? h('ul', { class: 'matches' }, why.matches.map(matchOf)) : h('p', {}, 'The gold has no calls.'),
    why.extra.length ? [h('h3', {}, 'Calls that no gold call wanted'), h('ul', { class: 'matches' }, why.extra.map((call) =>
      h('li', { class: 'extra' }, h('code', {}, callText(call)), ` turn ${call.turn + 1}`)))] : null,
    why.faults.length ? [h('h3', {}, 'Faults'), h('ul', {}, why.faults.map((fault) =>
      h('li', {}, `turn ${fault.turn + 1}: ${fault.text}`)))] : null,
    judgeOf(why.judge),
    body.turns.length ? h('section', {}, h('h2', {}, 'Turn rewards'), h('p', { class: 'turns' }, body.turns.map((reward, i) =>
      h('span', { class: reward ? 'hit' : '' }, `${i + 1}: ${reward}`)))) : null);
};

// Methods down, runs across: which words a method would reinforce.
const methodTable = (r) => {
  const one = app.head.rollouts[r];
  return h('div', { class: 'wide' }, h('table', { class: 'credits by-run' },
    h('thead', {}, h('tr', {}, h('th', {}, 'advantage'), one.segments.map((segment, run) =>
      h('th', { class: segment }, segment === 'summary' ? 'answer' : segment === 'tool' ? `turn ${run + 1}` : 'not learned')))),
    h('tbody', {}, app.head.methods.map((method, m) => h('tr', { class: m === app.method ? 'on' : '' },
      h('th', {}, h('button', { onclick: () => app.choose(m), title: method.rule, 'data-focus': `by-run-${m}` }, method.label)),
      method.absent ? h('td', { class: 'weak', colspan: Math.max(1, one.segments.length) }, method.absent)
        : one.advantages[m].map((a) => tinted('td', a, {}, signed(a))))))));
};

const rolloutView = (r) => {
  const one = app.head.rollouts[r], [g, i] = app.placeOf[r], body = app.body(g), own = body.rollouts[i];
  const [step, group, index] = one.at;
  return h('div', { class: 'rollout' },
    h('p', { class: 'crumbs' }, h('a', { href: `#/g/${g}` }, `step ${step} · group ${group}`), ` · rollout ${index + 1} of `
      + `${app.head.groups[g].rows.length}`, app.steps(app.near(r, -1), app.near(r, 1), 'rollout')),
    h('h1', {}, app.head.groups[g].question || body.task), goldOf(body),
    h('div', { class: 'pair' },
      h('section', {},
        h('div', { class: 'chips' }, factsOf(one, own)),
        h('div', { class: 'meters' }, meter('process', one.process, 'tool', 'calls against the gold'),
          meter('judge', one.judge, 'summary', own.why.judge && own.why.judge.word)),
        methodTable(r), h('p', { class: 'rule' }, app.head.methods[app.method].rule), app.legend(),
        h('details', { class: 'prompt' }, h('summary', {}, `prompt, with ${body.tools.length} tools`), h('pre', {}, body.prompt)),
        app.head.exact ? null : h('p', { class: 'note' }, 'No tokenizer was found: words stand where tokens would.'),
        h('div', { class: 'text', onpointerover: app.point, onclick: app.point }, partsOf(r, own, true))),
      whyOf(one, own)));
};

// What is known of the token that is pointed at.
const tokenView = (r, part, place) => {
  const one = app.head.rollouts[r], row = app.head.texts[part.tokens[place]], a = one.advantages[app.method][part.run];
  const at = (name) => (part.logps && part.logps[name] ? part.logps[name][place] ?? null : null);
  const [sampler, old, ref, fresh] = ['sampler', 'old', 'ref', 'new'].map(at);
  const line = (name, value, note) => h('tr', {}, h('th', {}, name), h('td', {}, value), h('td', { class: 'weak' }, note || ''));
  const lines = [];
  if (sampler !== null) lines.push(line('sampled with', percent(Math.exp(sampler)), `log π ${number(sampler, 3)}`));
  if (old !== null && sampler !== null) lines.push(line('trainer / sampler', number(Math.exp(old - sampler), 3)));
  if (fresh !== null && old !== null) lines.push(line('ratio after / before', number(Math.exp(fresh - old), 3), clipOf(Math.exp(fresh - old), a)));
  if (ref !== null) {
    const d = ref - (fresh ?? old);
    lines.push(line('KL to reference', number(Math.exp(d) - d - 1, 4), 'k3'));
  }
  if (old === null) lines.push(line('ratio, clip, KL', '—', 'this run kept the sampler’s log-probs only'));
  const shown = row[0].replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/ /g, '␣') || '(part of a character)';
  return [h('div', { class: 'what' }, h('code', {}, shown), row.length > 1 ? h('span', { class: 'weak' }, `id ${row[1]}`) : null),
    h('div', { class: 'pays' }, app.head.methods.map((method, m) => method.absent ? null
      : tinted('span', one.advantages[m][part.run] ?? 0, { class: m === app.method ? 'on' : '' },
        h('small', {}, method.label), signed(one.advantages[m][part.run])))),
    h('table', {}, h('tbody', {}, lines))];
};
const clipOf = (ratio, a) => {
  const { clip_low: low, clip_high: high, dual_clip: dual } = app.head.objective;
  if (!a) return '';
  if (a > 0 && ratio > 1 + high) return `above ${number(1 + high)}: clipped`;
  if (a < 0 && ratio < 1 - low) return `below ${number(1 - low)}: clipped`;
  return a < 0 && dual && ratio > dual ? `above ${number(dual)}: dual clip` : 'inside the clip range';
};
