-- What a server tells of itself at GET /metrics, all in one place: counts by route and tokens, times, and what engines,
-- memory and the device say when they are asked.

local metrics = require "qeng.server.metrics"
local q = require "qeng.core"

local figures = {}

local most_peers = 100  -- of a model, that have figures of their own

-- The figures of models whose layers lie on peers: of each model, and of each peer by its name. Fleet:state says them
-- (peers/state.lua), once for all figures of an answer: when the first of them is read.
local function declare_peers(self)
  local m, states = self.metrics, {}
  local function look()
    states = {}
    for _, each in ipairs(self.models) do
      states[each.name] = each.model.peers and each.model.peers:state() or nil
    end
  end
  local function of_fleets(name, help, read)
    m:declare(name, "counter", help, function()
      if name == "qeng_peers_lost_total" then look() end
      local all = {}
      for model, state in pairs(states) do all[metrics.labels { model = model }] = read(state) end
      return all
    end)
  end
  local function of_peers(name, kind, help, read)
    m:declare(name, kind, help, function()
      local all = {}
      for model, state in pairs(states) do
        for i = 1, math.min(#state.peers, most_peers) do
          local peer = state.peers[i]
          all[metrics.labels { model = model, peer = peer.name }] = read(peer, peer.link or {})
        end
      end
      return all
    end)
  end
  of_fleets("qeng_peers_lost_total", "peers that were lost while they had layers", function(s) return s.lost end)
  of_fleets("qeng_layers_moved_total", "layers that moved to another machine", function(s) return s.moved end)
  of_fleets("qeng_late_frames_total", "answers of peers that nobody waited for any more",
    function(s) return s.dropped end)
  of_peers("qeng_peer_here", "gauge", "1: the peer is connected; `here` is this process",
    function(p) return p.here and 1 or 0 end)
  of_peers("qeng_peer_layers", "gauge", "layers that the peer has", function(p) return p.count end)
  of_peers("qeng_peer_layer_bytes", "gauge", "bytes of their weights", function(p) return p.bytes end)
  of_peers("qeng_peer_free_bytes", "gauge", "memory that is free there", function(p) return p.free end)
  of_peers("qeng_peer_step_seconds", "gauge", "seconds a step in the peer's layers, of late",
    function(p) return p.step_seconds end)
  of_peers("qeng_peer_steps_total", "counter", "steps through the layers that the peer has",
    function(p) return p.steps end)
  of_peers("qeng_peer_computed_seconds_total", "counter", "seconds that these took", function(p) return p.computed end)
  of_peers("qeng_peer_link_seconds", "gauge", "round trip of a sign of life", function(_, l) return l.round_trip end)
  of_peers("qeng_peer_sent_bytes_total", "counter", "bytes sent to the peer", function(_, l) return l.sent end)
  of_peers("qeng_peer_received_bytes_total", "counter", "bytes received from the peer",
    function(_, l) return l.received end)
end

-- Declares all of a server's figures.
function figures.declare(self)
  local m = self.metrics
  m:declare("qeng_requests_total", "counter", "requests answered, by method, route and status")
  m:declare("qeng_request_seconds", "histogram", "from a request's head to the end of its answer")
  m:declare("qeng_queue_seconds", "histogram", "from a request's head to its first step")
  m:declare("qeng_time_to_first_token_seconds", "histogram", "from a request's head to its first token")
  m:declare("qeng_inter_token_seconds", "histogram", "between tokens of an answer")
  m:declare("qeng_tokens_total", "counter", "tokens by kind: prompt (computed), cached (not computed again), output")
  m:declare("qeng_drafted_tokens_total", "counter", "tokens that were guessed ahead")
  m:declare("qeng_accepted_tokens_total", "counter", "guesses that came true")
  local function of_models(name, help, read, kind)
    m:declare(name, kind or "gauge", help, function()
      local all = {}
      for _, each in ipairs(self.models) do
        all[metrics.labels { model = each.name }] = read(each.engine:stats(), each)
      end
      return all
    end)
  end
  of_models("qeng_running_requests", "requests in the batch", function(s) return s.running end)
  of_models("qeng_waiting_requests", "requests in the queue", function(s) return s.waiting end)
  of_models("qeng_engine_steps", "steps since the start", function(s) return s.steps end)
  of_models("qeng_batched_requests_total", "requests of all steps: by steps, the mean batch",
    function(_, each) return each.batched end, "counter")
  of_models("qeng_step_seconds_total", "seconds of all steps: by steps, the mean step",
    function(_, each) return each.seconds end, "counter")
  of_models("qeng_kv_pages", "pages of the cache", function(s) return s.pages end)
  of_models("qeng_kv_pages_used", "pages in use", function(s) return s.used end)
  of_models("qeng_kv_bytes", "bytes of the pages in use", function(s) return s.kv_bytes end)
  m:declare("qeng_connections", "gauge", "open connections", function() return self.http:stats().connections end)
  m:declare("qeng_refused_total", "counter", "requests that never reached a route",
    function() return self.http:stats().refused end)
  local measured = "in the last step that was measured"
  of_models("qeng_device_bytes", "bytes a second that operations read and wrote, " .. measured,
    function(_, each) return each.rate and each.rate.bytes end)
  of_models("qeng_device_flops", "floating-point operations a second, " .. measured,
    function(_, each) return each.rate and each.rate.flops end)
  of_models("qeng_device_share", "of the device's measured limit, " .. measured,
    function(_, each) return each.rate and each.rate.share end)
  m:declare("qeng_device_limit", "gauge", "measured limits of the device: bytes or operations a second", function()
    local all = {}
    for name, value in pairs(self.limits or {}) do all[metrics.labels { of = name }] = value end
    return all
  end)
  m:declare("qeng_memory_bytes", "gauge", "memory of tensors by what it is for", function()
    local all = {}
    for name, account in pairs(q.memory()) do all[metrics.labels { name = name }] = account.bytes end
    return all
  end)
  m:declare("qeng_peak_memory_bytes", "gauge", "the most memory that the process had", q.host.peak_rss)
  declare_peers(self)
end

local methods = {}
for name in ("GET HEAD POST PUT PATCH DELETE OPTIONS"):gmatch "%S+" do methods[name] = name end

-- Counts a request that was answered or refused. Clients may make up methods: all of those are one.
function figures.answered(self, event, path, status)
  local method = methods[event.method] or "other"
  self.metrics:add("qeng_requests_total", 1, { method = method, path = path, status = status })
end

-- Counts a call that is over: tokens of its prompts, of its answers, and those of prompts that were there already.
function figures.count(self, call, status, path, seconds)
  local m, prompt, output, reused = self.metrics, 0, 0, 0
  for _, each in ipairs(call.requests) do
    local r = each.request
    prompt, output, reused = prompt + r.prompt_tokens, output + #r.output, reused + r.reused
    m:add("qeng_tokens_total", r.prompt_tokens - r.reused, { kind = "prompt" })
    m:add("qeng_tokens_total", r.reused, { kind = "cached" })
    m:add("qeng_tokens_total", #r.output, { kind = "output" })
    m:add("qeng_drafted_tokens_total", r.drafted)
    m:add("qeng_accepted_tokens_total", r.accepted)
    if r.started_at then m:observe("qeng_queue_seconds", r.started_at - call.event.at) end
  end
  figures.answered(self, call.event, path, status)
  m:observe("qeng_request_seconds", seconds, { path = path })
  return prompt, output, reused
end

return figures
