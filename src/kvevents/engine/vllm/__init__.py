"""How vLLM schedules, and when it announces."""
