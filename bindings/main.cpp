#include "bindings/host.h"

int main(int argc, char** argv) { return qeng::run_host(argc, argv); }
