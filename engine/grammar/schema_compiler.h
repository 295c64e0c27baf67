// The work of schema.h: one schema's rules in the making.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/grammar/expression.h"
#include "engine/grammar/language.h"
#include "engine/grammar/schema_merge.h"

namespace qeng::grammar {

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root);
  Rules compile();

  struct Property {
    std::string name;
    const Json* schema;
    bool required;
  };

 private:
  // where: "schema at #/properties/a", for messages and names of rules.
  struct Alternative {
    Json schema;  // in normal form (schema_merge.h)
    std::string where;
  };
  Expr value(const Json& schema, const std::string& where);
  Expr plain(const Json& schema, const std::string& where);  // of one in normal form, as are the following
  Expr typed(const Json& schema, const std::string& type, const std::string& where);
  Expr enumerated(const Json& schema, const std::string& where);
  Expr object(const Json& schema, const std::string& where);  // schema_object.cpp
  Expr counted_object(const Json& schema, const std::vector<Property>& properties, const std::vector<Expr>& pairs,
                      const Expr* another, const std::string& where);
  Expr array(const Json& schema, const std::string& where);  // schema_array.cpp
  Expr counted_array(const Json& schema, const std::string& where);
  Expr distinct_array(const Json& schema, const std::string& where);
  Expr key_besides(const std::set<std::string>& names, const std::string& where);

  // schema_scalar.cpp: strings and numbers
  Expr string(const Json& schema, const std::string& where);
  Expr number(const Json& schema, bool integer, const std::string& where);
  // generated: without control characters where a pattern does not name them; otherwise all that the schema means.
  void narrow_strings(Language& language, const Json& schema, bool generated, const std::string& where) const;
  void narrow_numbers(Language& language, const Json& schema, const std::string& where) const;
  void begin_numbers(Language& language, const Json& schema, bool integer, const std::string& where) const;
  Expr spelled(const Language& language, bool quoted, const std::string& where);

  // schema_logic.cpp: what joins schemas. An alternative is what one way to hold to the schema asks for; generous: more
  // than hold to it, so that what differs from all of them surely does not.
  std::vector<Alternative> alternatives(const Json& schema, const std::string& where, int depth, bool generous);
  std::vector<Alternative> joined(const std::vector<Alternative>& a, const std::vector<Alternative>& b);
  std::vector<Alternative> only(const Json& schemas, size_t index, const std::vector<Alternative>& base,
                                const std::string& where, int depth);
  // Schemas in normal form of what does not hold to `schema`; exact becomes false where some of that is left out. of:
  // what they will be merged with.
  std::vector<Json> negated(const Json& schema, const Json& of, const std::string& where, int depth, bool& exact);
  // Surely nothing that is generated for a holds to b.
  bool apart(const Json& a, const Json& b, const std::string& where, int depth);
  bool apart_of_type(const Json& a, const Json& b, const std::string& type, const std::string& where, int depth);
  bool schemas_apart(const Json& a, const Json& b, const std::string& where, int depth);
  bool all_apart(const Json& schemas, const std::string& where);

  // Does a value hold to a schema, in normal form or as it is written? schema_check.cpp
  bool holds(const Json& value, const Json& schema, const std::string& where, int depth = 0) const;
  bool text_holds(const std::string& text, const Json& schema, const std::string& where) const;
  bool same(const Json& a, const Json& b, const std::string& where) const;
  bool accepts(const Language& language, std::string_view text, const std::string& where) const;

  Json merged(const Json& a, const Json& b, const std::string& where);
  void spend(size_t work, const std::string& where) const;  // Error("format") once there was too much
  const Json& target(const std::string& reference, const std::string& where) const;
  uint32_t reference(const std::string& reference, const std::string& where);
  uint32_t add(const std::string& name, Expr body);
  Expr json(const char* name) const { return rule(json_rules_.at(name)); }
  Expr spaced(const char* sign) const { return sequence({json("ws"), literal(sign), json("ws")}); }

  const Json& root_;
  Rules rules_;
  std::map<std::string, uint32_t, std::less<>> json_rules_;
  std::map<std::string, uint32_t> references_;
  std::map<std::string, uint32_t> numbers_;  // rules of numbers, by what they hold to
  std::map<std::string, uint32_t> joined_;   // rules of schemas that join others, by their text
  std::vector<std::string> waiting_;         // references whose rule has no body yet
  mutable std::map<std::string, const Json*> targets_;
  mutable size_t work_ = 0;
  int nesting_ = 0;
};

constexpr int kMaxNesting = 100;          // of JSON values in a schema, and of references to references
constexpr size_t kMaxAlternatives = 200;  // of one schema, merged
constexpr size_t kText = 64,
                 kSchema = 20;  // bytes that cost as much to copy as a value; the cost of a schema by itself

size_t size_of(const Json& json);  // the work of copying it

}  // namespace qeng::grammar
