"""What the commands share: launching under Hydra, the console, the transcript view."""
