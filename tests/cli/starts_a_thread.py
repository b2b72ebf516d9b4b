"""A module that nothing can be forked after."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
