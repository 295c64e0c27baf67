// The work of schema.h: one schema's rules in the making.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/grammar/expression.h"
#include "engine/grammar/schema_merge.h"

namespace qeng::grammar {

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root);
  Rules compile();

 private:
  // where: "schema at #/properties/a", for messages and names of rules.
  Expr value(const Json& schema, const std::string& where);
  Expr typed(const Json& schema, const std::string& type, const std::string& where);
  Expr enumerated(const Json& schema, const std::string& where);
  Expr object(const Json& schema, const std::string& where);  // schema_object.cpp
  Expr array(const Json& schema, const std::string& where);   // schema_object.cpp
  Expr string(const Json& schema, const std::string& where);
  Expr number(const Json& schema, bool integer, const std::string& where);
  Expr key_besides(const std::set<std::string>& names, const std::string& where);

  // The schema without $ref and allOf at its top; depth: of references to references.
  Json expanded(const Json& schema, const std::string& where, int depth);
  Json merged(const Json& a, const Json& b, const std::string& where);
  void spend(size_t work, const std::string& where);  // Error("format") once there was too much
  const Json& target(const std::string& reference, const std::string& where) const;
  uint32_t reference(const std::string& reference, const std::string& where);
  uint32_t add(const std::string& name, Expr body);
  Expr json(const char* name) const { return rule(json_rules_.at(name)); }
  Expr spaced(const char* sign) const { return sequence({json("ws"), literal(sign), json("ws")}); }

  const Json& root_;
  Rules rules_;
  std::map<std::string, uint32_t, std::less<>> json_rules_;
  std::map<std::string, uint32_t> references_;
  std::vector<std::string> waiting_;  // references whose rule has no body yet
  size_t work_ = 0;
  int nesting_ = 0;
};

}  // namespace qeng::grammar
