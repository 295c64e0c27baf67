// Standard output as a well-behaved program treats it. Where nobody reads it any more, SIGPIPE ends the process, as it
// ends others in a pipeline; but a job whose result is files goes on, and what it prints is lost. A process that ends
// with status 0 although not all it printed arrived (a full disk, a pipe that nobody reads) says so and ends with
// status 1.
#pragma once
#include <string>

namespace qeng {

// Once, at the start. A stream that is closed is opened, so that no file gets its number.
void guard_standard_streams();
// From now on the process goes on where nobody reads what it prints.
void outlive_readers();
// From now on nothing but errors is printed, with these words before them: another process of the same job prints the
// rest. An error that all of them have is printed by that one: this one waits a moment, in which it is ended.
void speak_of_errors_only(const std::string& who);
// Prints a line to standard error: an error that ends the process.
void print_error(const std::string& text);

}  // namespace qeng
