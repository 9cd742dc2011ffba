from openforge.store.training import Curve
from openforge_tui.curves import charts


def test_names_stand_together_and_unknown_ones_are_shown_too() -> None:
    names = ["train.success.pi", "train.success.react", "train.reward", "rollouts.reward", "eval.success", "eval.n"]
    found = charts({name: Curve([1], [0.5]) for name in [*names, "train.success.low", "loss/total"]})
    told = {title: [series.name for series in lines] for title, lines in found}
    assert told == {
        "reward, mean of a step": ["reward"],
        "success by harness": ["pi", "react"],
        "evaluation: success, 95 % interval": ["success"],
        "train.success.low": ["train.success.low"],
        "loss/total": ["loss/total"],
    }


def test_what_rollouts_say_stands_in_for_a_trainer_that_says_nothing() -> None:
    [(title, [series])] = charts({"rollouts.reward": Curve([1, 2], [0.1, 0.2])})
    assert (title, series.xs, series.ys) == ("reward, mean of a step", [1, 2], [0.1, 0.2])
