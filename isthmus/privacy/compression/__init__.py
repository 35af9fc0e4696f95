"""Messages in fewer bytes: codecs that know nothing of courses, and the guards that use them."""
