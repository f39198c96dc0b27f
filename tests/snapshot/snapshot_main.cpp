// Backends come from the build's own plug-ins.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("CAIRN_BACKEND_PATH", CAIRN_PLUGIN_DIR, 1);
  return doctest::Context(argc, argv).run();
}
