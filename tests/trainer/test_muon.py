import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

from trainer.verl_plugins.muon import MuonAdamW, orthogonalize  # noqa: E402


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_orthogonalize_makes_singular_values_about_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.3


def test_tables_and_vectors_get_exactly_adamw() -> None:
    torch.manual_seed(0)
    table, vector = torch.randn(90, 4), torch.randn(4)
    ours = [torch.nn.Parameter(table.clone()), torch.nn.Parameter(vector.clone())]
    peers = [torch.nn.Parameter(table.clone()), torch.nn.Parameter(vector.clone())]
    settings = {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.1}
    optimizers = [MuonAdamW(ours, **settings), torch.optim.AdamW(peers, **settings)]
    for _ in range(5):
        for parameters, optimizer in zip((ours, peers), optimizers, strict=True):
            optimizer.zero_grad()
            ((parameters[0] * parameters[1]).tanh() ** 2).sum().backward()
            optimizer.step()
    for one, other in zip(ours, peers, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_matrices_move_as_with_torch_muon(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, inputs = torch.randn(shape), torch.randn(16, shape[0])
    ours, peer = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    for parameter, optimizer in (
        (ours, MuonAdamW([ours], lr=0.01)),
        (peer, torch.optim.Muon([peer], lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")),
    ):
        for _ in range(4):
            optimizer.zero_grad()
            ((inputs @ parameter).tanh() ** 2).sum().backward()
            optimizer.step()
    moved, expected = (ours - start).flatten(), (peer - start).flatten()
    # torch's own works in bfloat16 inside
    assert torch.cosine_similarity(moved, expected, dim=0) > 0.999
    assert 0.98 < float((moved.norm() / expected.norm()).detach()) < 1.02


def test_a_parameter_without_gradient_stays() -> None:
    kept = torch.nn.Parameter(torch.ones(3, 3))
    MuonAdamW([kept], weight_decay=0.5).step()
    assert torch.equal(kept, torch.ones(3, 3))
