/* Of which sources this was compiled, so that a library that is older than the code around it is not used. */
const char *native_sources(void) { return SOURCES; }
