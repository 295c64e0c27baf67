// flaky_proxy HOST:PORT [LISTEN_PORT]
// The proxy of flaky_proxy.h as a program, for shell campaigns: prints the port that it listens at, on 127.0.0.1, and takes
// an order a line until its input ends.
#include "tests/flaky_proxy.h"

#include <iostream>

int main(int argc, char** argv) {
  const std::string target = argc > 1 ? argv[1] : "";
  const size_t colon = target.rfind(':');
  if (argc < 2 || argc > 3 || colon == target.npos) {
    std::cerr << "usage: flaky_proxy HOST:PORT [LISTEN_PORT]\n";
    return 2;
  }
  try {
    FlakyProxy proxy(target.substr(0, colon), std::stoi(target.substr(colon + 1)), argc > 2 ? std::stoi(argv[2]) : 0);
    std::cout << proxy.port() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      try {
        proxy.order(line);
      } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
      }
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
