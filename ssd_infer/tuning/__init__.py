"""What strategies share to choose their parameters: costs, acceptance on text, predictions, races."""
