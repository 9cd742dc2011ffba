"""Which tokens a conversation is made of, and which of them the policy sampled. Pure data, no I/O."""
