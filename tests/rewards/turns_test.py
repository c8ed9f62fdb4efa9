"""Laws of TARA's turn rewards."""

from slca_jax.dialogue import Parsed, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.rewards.turns import turn_rewards


def f(**arguments):
  return ToolCall('f', arguments)


def turn(*calls):
  return Turn((), (), '', Parsed(tuple((call,) for call in calls), (), len(calls), len(calls)))


GOLD = ((f(x=1), f(x=2)), (f(x=3),))


def rewards(*turns, gold=GOLD, status=Status.FINISHED):
  return turn_rewards(Trajectory(Task('t', (), (), gold), 0, 0, (), turns, status))


def test_a_turn_is_right_if_it_covers_all_of_its_gold_calls_in_any_order():
  assert rewards(turn(f(x='2', y=0), f(x=1)), turn(f(x=3)), turn()) == (1.0, 1.0)


def test_one_call_covers_one_gold_call():
  assert rewards(turn(f(x=1)), turn(), gold=((f(x=1), f(x=1)),)) == (0.0,)


def test_a_call_in_the_wrong_turn_earns_nothing():
  assert rewards(turn(f(x=1), f(x=2), f(x=3)), turn()) == (1.0, 0.0)
  assert rewards(turn(f(x=1)), turn(f(x=2)), turn(f(x=3)), turn()) == (0.0, 0.0, 0.0)


def test_turns_after_the_golds_last_earn_nothing():
  assert rewards(turn(f(x=1), f(x=2)), turn(f(x=3)), turn(f(x=3)), turn()) == (1.0, 1.0, 0.0)


def test_a_turn_that_was_never_reached_is_zero():
  assert rewards(turn(f(x=1), f(x=2)), turn()) == (1.0, 0.0)
  assert rewards() == (0.0, 0.0)


def test_a_turn_whose_calls_could_not_be_read_keeps_its_place():
  assert rewards(turn(), turn(f(x=1), f(x=2)), turn(f(x=3)), turn()) == (0.0, 0.0, 0.0)


def test_an_unfinished_rollout_has_no_answer_to_leave_out():
  assert rewards(turn(f(x=1), f(x=2)), turn(f(x=3)), status=Status.OUT_OF_TURNS) == (1.0, 1.0)


def test_no_gold_and_no_call_is_no_turn():
  assert rewards(turn(), gold=()) == ()
