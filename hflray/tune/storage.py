class Storage:
    pass
