"""Which hosts a rollout may reach besides the models. Pure."""

from collections.abc import Iterable


def allowing_rule(rules: Iterable[str], host: str, port: int) -> str | None:
    """The first rule that allows `host:port`, or None. A rule is `host`, `host:port`, or either with a leading `*.`
    for every name below; a rule without a port allows 80 and 443."""
    host = host.lower().rstrip(".")
    for rule in rules:
        name, _, wanted = rule.lower().partition(":")
        if (port != int(wanted)) if wanted.isdigit() else (port not in (80, 443)):
            continue
        if host == name or (name.startswith("*.") and host.endswith(name[1:])):
            return rule
    return None
