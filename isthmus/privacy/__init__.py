"""Guards: what is done to a message before it leaves and after it arrives; and what noise promises."""
