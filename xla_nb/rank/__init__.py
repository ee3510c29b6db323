"""The job and each of its ranks: the program is loaded once, forked, called and measured."""
