-- Says who dialed this machine and was not let in, with what would let it in. (The one who dials hears nothing.) peers:
-- of q.peers.open; say(text).

return function(peers, say)
  for _, one in ipairs(peers:refused()) do
    say(("refused %s, whose key is unknown here; to let it in: q.keys { know = { name = \"NAME\", public = \"%s\" } }")
      :format(one.address, one.key))
  end
end
