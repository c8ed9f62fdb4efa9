"""Laws of prompts, replies and demonstrations, on tokenizers small enough to read."""

import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slca_jax.chat.calls import parse
from slca_jax.chat.template import Template, describe, load_template
from slca_jax.dialogue import Message, Observation, Tool, ToolCall
from slca_jax.errors import DataError, TemplateError

# One word per id, so that the rows below can be read: 10, 20, ... are words, 30 and 31 tool results.
_WORDS = {'<unk>': 0, '<|im_start|>': 1, '<|im_end|>': 2, '\n': 3, 'system': 4, 'user': 5, 'assistant': 6}
_WORDS |= {'<r>': 7, '</r>': 8, '<|endoftext|>': 9} | {f'w{i}': i for i in range(10, 40)}
_WORD_TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user
{% endif %}<r>{{ m.content }}</r>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Qwen-like, worded for these tests. With `forgetful`, reasoning is dropped from all turns but the last, as Qwen3 does.
_QWEN_TEMPLATE = r"""{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Callable:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- elif m.role == 'assistant' %}<|im_start|>assistant
{% set said = m.content %}
{%- if forgetful %}
{%- if not loop.last %}{% set said = said.split('</think>')[-1].lstrip('\n') %}
{%- elif '</think>' not in said %}<think>

</think>

{% endif %}
{%- endif %}{{ said }}
{%- for c in m.tool_calls or [] %}
{%- if said or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'user' or not loop.first %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if forgetful and quick %}<think>

</think>

{% endif %}{% endif %}"""

_SMOL_TEMPLATE = (
  "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

WEATHER = Tool('get_weather', 'Weather of a city.', {'type': 'object', 'properties': {'city': {'type': 'string'}}})
ASK = Message('user', 'Weather in Zürich and Lyon?')
PAIR = (ToolCall('get_weather', {'city': 'Zürich'}), ToolCall('get_weather', {'city': 'Lyon'}))
CALLING, SEEN = Message('assistant', 'Looking.', PAIR), (Message('tool', 'sunny'), Message('tool', 'rain'))


def word_tokenizer(template=_WORD_TEMPLATE):
  tokenizer = Tokenizer(models.WordLevel(_WORDS, unk_token='<unk>'))
  tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r'<[^>]*>|\n|w\d\d'), 'isolated')
  tokenizer.decoder = decoders.Fuse()
  tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in _WORDS if t.startswith('<|')])
  return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)


def byte_tokenizer(template=_QWEN_TEMPLATE):
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
  trainer = trainers.BpeTrainer(
    vocab_size=330,
    special_tokens=special,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(['{"name": "get_weather", "arguments": {"city": "Lyon"}} sunny rain'] * 3, trainer)
  tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ('<tool_call>', '</tool_call>')])
  return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, eos_token='<|im_end|>')


def rollout_row(pieces):
  tokens = [token for ids, _ in pieces for token in ids]
  learnable = [place for place, kept in enumerate(k for ids, k in pieces for _ in ids) if kept]
  return tokens, learnable


def test_pinned_row():
  template = Template(word_tokenizer())
  prompt = template.prompt([Message('user', 'w10')])
  assert prompt == (1, 5, 3, 10, 2, 3, 1, 6, 3) and template.prompt_length([Message('user', 'w10')]) == 9
  row = [*prompt, 20, 21, 2, *template.reply([Observation('w30')], [20, 21, 2]), 22, 2]
  expected = [1, 5, 3, 10, 2, 3, 1, 6, 3, 20, 21, 2, 3, 1, 5, 3, 7, 30, 8, 2, 3, 1, 6, 3, 22, 2]
  assert row == expected
  said = [Message('assistant', 'w20w21'), Message('tool', 'w30'), Message('assistant', 'w22')]
  assert rollout_row(template.dialogue([Message('user', 'w10'), *said])) == (expected, [9, 10, 11, 24, 25])


def test_two_results_of_one_turn_are_one_user_turn():
  template = Template(word_tokenizer())
  reply = template.reply([Observation('w30'), Observation('w31', ok=False)], [20, 2])
  assert reply == (3, 1, 5, 3, 7, 30, 8, 7, 31, 8, 2, 3, 1, 6, 3)


@pytest.mark.parametrize('last', [21, 9, 4321])
def test_reply_closes_a_turn_that_the_policy_left_open(last):
  template = Template(word_tokenizer(), stop_ids=[9])
  assert template.reply([Observation('w30')], [20, last])[:5] == (2, 3, 1, 5, 3)
  assert template.reply([Observation('w30')], []) == (2, *template.reply([Observation('w30')], [2]))


@pytest.mark.parametrize('quick', [False, True])
@pytest.mark.parametrize('forgetful', [False, True])
def test_demonstration_has_the_ids_and_mask_of_a_rollout_that_said_the_same(forgetful, quick):
  template = Template(byte_tokenizer(), options={'forgetful': forgetful, 'quick': quick})
  thought = '<think>\ntwo cities\n</think>\n\n' if forgetful and not quick else ''
  first, last = Message('assistant', f'{thought}Looking.', PAIR), Message('assistant', f'{thought}Sunny, rain.')
  seen = [Observation('sunny'), Observation('rain')]
  turns = [template.encode(thought + text) for text in (_said(PAIR), 'Sunny, rain.<|im_end|>')]
  row = [*template.prompt([ASK], [WEATHER]), *turns[0], *template.reply(seen, turns[0]), *turns[1]]
  start = len(row) - len(turns[1])
  pieces = template.dialogue([ASK, first, *(Message('tool', s.content) for s in seen), last], [WEATHER])
  tokens, learnable = rollout_row(pieces)
  assert tokens == row
  prompt = len(template.prompt([ASK], [WEATHER]))
  assert learnable == [*range(prompt, prompt + len(turns[0])), *range(start, len(row))]


def _said(calls):
  blocks = [
    f'\n<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{c.arguments["city"]}"}}}}\n</tool_call>'
    for c in calls
  ]
  return 'Looking.' + ''.join(blocks) + '<|im_end|>'


def test_reply_equals_the_templates_own_text_after_the_call():
  template, tokenizer = Template(byte_tokenizer()), byte_tokenizer()
  messages = [ASK, Message('assistant', 'Looking.', PAIR), Message('tool', 'sunny'), Message('tool', 'rain')]
  whole = template.prompt(messages, [WEATHER])
  turn = template.turn(messages[1])
  built = (*template.prompt([ASK], [WEATHER]), *turn)
  assert whole == (*built, *template.reply([Observation('sunny'), Observation('rain')], turn))
  assert tokenizer.decode(turn) == _said(PAIR)


def test_call_without_words_starts_at_the_block():
  template = Template(byte_tokenizer())
  assert template.decode(template.turn(Message('assistant', '', PAIR[1:]))) == (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lyon"}}\n</tool_call>'
  )


def test_template_without_tools_gets_the_same_dialogue_as_text():
  template = Template(byte_tokenizer(_SMOL_TEMPLATE))
  assert not template.native
  text = template.decode(template.prompt([Message('system', 'Be brief.'), ASK], [WEATHER]), stops=True)
  assert text.startswith('<|im_start|>system\nBe brief.\n\n# Functions')
  assert '"name": "get_weather"' in text and text.count('<|im_start|>') == 3
  reply = template.reply([Observation('sunny'), Observation('rain')], template.turn(Message('assistant', '', PAIR)))
  assert template.decode(reply, stops=True) == (
    '\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n'
    '<|im_start|>assistant\n'
  )
  assert template.decode(template.turn(Message('assistant', 'Looking.', PAIR)), stops=True) == _said(PAIR)


@pytest.mark.parametrize(
  'change',
  [
    ('{%- for c in m.tool_calls or [] %}', '{%- for c in [] %}'),
    ('<tool_call>\n{"name"', '[TOOL] {"name"'),
    ('"arguments":', '"parameters":'),
    ("{%- elif m.role == 'assistant' %}", "{%- elif m.tool_calls %}{{ raise_exception('one at once') }}\n"
     "{%- elif m.role == 'assistant' %}"),
  ],
)  # fmt: skip
def test_calls_that_a_template_writes_as_no_rollout_reads_them_are_blocks_of_text(change, caplog):
  template = Template(byte_tokenizer(_QWEN_TEMPLATE.replace(*change)))
  assert not template.native and 'results become text' in caplog.text
  prompt, turn, reply, _ = template.dialogue([ASK, CALLING, *SEEN, Message('assistant', 'Fine.')], [WEATHER])
  assert parse(template.decode(turn.tokens)).calls == PAIR
  assert 'get_weather' in template.decode(prompt.tokens)
  assert template.decode(reply.tokens).count('<tool_response>') == 2
  assert Template(byte_tokenizer()).native


def test_prompts_do_not_change_with_the_day():
  dated = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
  dated += '<|im_start|>system\n{{ date_string }}<|im_end|>\n' + _SMOL_TEMPLATE
  prompt = lambda **options: (made := Template(byte_tokenizer(dated), options=options)).decode(made.prompt([ASK]))
  assert '26 Jul 2024' in prompt() and '1 May 2026' in prompt(date_string='1 May 2026')


def test_history_in_context_is_not_learnable():
  template = Template(byte_tokenizer())
  messages = [ASK, Message('assistant', 'Sunny.'), Message('user', 'Sure?'), Message('assistant', 'Yes.')]
  all_turns = template.dialogue(messages)
  last_only = template.dialogue(messages, context=3)
  assert [piece.learnable for piece in all_turns] == [False, True, False, True]
  assert [piece.learnable for piece in last_only] == [False, True]
  assert rollout_row(all_turns)[0] == rollout_row(last_only)[0]
  assert last_only[0].tokens == template.prompt(messages[:3])


@pytest.mark.parametrize('roles', [['user'], [], ['user', 'assistant', 'assistant'], ['user', 'assistant', 'tool']])
def test_dialogue_that_is_no_demonstration_is_refused(roles):
  with pytest.raises(DataError, match='assistant'):
    Template(byte_tokenizer()).dialogue([Message(role, 'x') for role in roles])


@pytest.mark.parametrize('context', [0, 1, 3])
def test_context_ends_where_the_assistant_begins(context):
  with pytest.raises(DataError, match=f'context is {context}'):
    Template(byte_tokenizer()).dialogue([ASK, ASK, Message('assistant', 'Sunny.')], context=context)


def test_ids_without_a_text_are_shown_and_counted():
  template = Template(word_tokenizer())
  assert template.vocab_size == 40
  assert template.decode([20, 40, -1, 2**40, 21, 2]) == 'w20\ufffd\ufffd\ufffdw21'
  assert template.unknown([20, 40, -1, 2**40, 21, 2]) == 3
  assert template.decode([20, 2], stops=True) == 'w20<|im_end|>'


def test_stop_ids_are_the_templates_the_tokenizers_and_the_configs():
  assert Template(word_tokenizer(), stop_ids=[9, 2]).stop_ids == (2, 9)
  assert Template(word_tokenizer()).stop_ids == (2,)


def test_cut_observation_keeps_both_ends_within_the_limit():
  template = Template(byte_tokenizer())
  text = ''.join(f'line {i} ☃\n' for i in range(4000))
  for limit in (20, 64, 500):
    cut = template.cut_observation(text, limit)
    assert limit - 8 <= len(template.encode(cut)) <= limit
    head, tail = cut.split('\n[...]\n')
    assert text.startswith(head) and text.endswith(tail) and head and tail
  assert template.cut_observation('sunny', 20) == 'sunny'
  assert template.cut_observation(text, 2) == ''
  assert len(template.encode(template.cut_observation('x' * 10_000_000, 100))) <= 100


def test_lone_surrogate_in_an_observation_is_no_crash():
  template = Template(byte_tokenizer())
  assert '?' in template.decode(template.reply([Observation('a\ud835b')], []))


@pytest.mark.parametrize(
  ('template', 'why'),
  [
    (None, 'no chat template'),
    ("{{ raise_exception('boom') }}", 'boom'),
    ("{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}", 'leaves out'),
    (_QWEN_TEMPLATE.replace('{{ m.content }}\n</tool_response>', '</tool_response>'), r"\['zqseen1', 'zqseen2'\]"),
    (_SMOL_TEMPLATE.replace("'<|im_end|>' + ", ''), 'no special token'),
  ],
)
def test_template_that_cannot_serve_rollouts_is_refused_at_once(template, why):
  with pytest.raises(TemplateError, match=why):
    Template(byte_tokenizer(template))


def test_loads_a_saved_folder_with_every_eos_of_its_configs(tmp_path):
  byte_tokenizer().save_pretrained(tmp_path)
  assert load_template(tmp_path).stop_ids == (2,)
  (tmp_path / 'config.json').write_text('{"model_type": "llama", "eos_token_id": [1, 2]}')
  assert load_template(tmp_path).stop_ids == (2, 1)  # as servers take it where no generation config says
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [2, 0]}')
  assert load_template(tmp_path).stop_ids == (2, 0)
  with pytest.raises(TemplateError, match='nowhere'):
    load_template(tmp_path / 'nowhere')


def test_what_a_tokenizer_was_once_cut_and_filled_to_does_not_touch_what_is_encoded(tmp_path):
  tokenizer, dialogue = byte_tokenizer(), [Message('user', 'sunny rain ' * 20)]
  tokenizer.pad_token = '<|endoftext|>'
  prompt = Template(tokenizer).prompt(dialogue)
  for padding in (False, 'max_length'):
    tokenizer('Lyon', truncation=True, max_length=32, padding=padding)  # as training scripts do before they save it
    tokenizer.save_pretrained(tmp_path)
    assert '"max_length": 32' in (tmp_path / 'tokenizer.json').read_text()
    assert load_template(tmp_path).prompt(dialogue) == prompt and len(prompt) > 32


def test_folder_that_lost_its_words_is_refused_though_special_tokens_are_known(tmp_path):
  byte_tokenizer().save_pretrained(tmp_path)
  words = tmp_path / 'tokenizer.json'
  kept = json.loads(words.read_text())
  kept['model'] |= {'vocab': {}, 'merges': []}  # as where transformers makes up for a file that is missing
  words.write_text(json.dumps(kept))
  with pytest.raises(TemplateError, match=r"makes no ids of 'question'.*tokenizer\.json"):
    load_template(tmp_path)


def test_needed_ids_are_those_of_all_that_a_rollout_writes():
  template = Template(byte_tokenizer())
  answer = template.turn(Message('assistant', 'words'))
  assert {*answer, *template.stop_ids, *template.encode('zqseen1')} <= template.needed_ids
  assert max(template.needed_ids) < template.vocab_size


def test_tools_are_described_as_functions():
  assert describe(WEATHER)['function'] == {
    'name': 'get_weather',
    'description': 'Weather of a city.',
    'parameters': WEATHER.parameters,
  }
