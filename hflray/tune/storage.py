class Storage: pass
