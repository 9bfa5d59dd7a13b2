WORST = 1e12
def worst(mode): return WORST if mode == "min" else -WORST
def drawn(journal, file): return []
class Search: pass
class Halving: pass
