"""The models a run trains: built from scratch or pretrained, their exits, the precision they are saved in."""
