"""A reward function for the sandbox: kind `Python`, see python.yaml. What a function may take: docs/rewards.md."""


def reward(completion, ground_truth):
    """1 for the ground truth, else 0: write your own reward here."""
    return float(completion.strip() == str(ground_truth).strip())
